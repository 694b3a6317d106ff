// Command heap fills maps and slices under Go's collector and passes a part of them through C.
// It prints a hash of each step.
//
//	heap RECORDS [SEED]
package main

/*
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Memory that C owns: malloc's, beside Go's heap.
static uint64_t *ledger_new(size_t entries) {
	return calloc(entries, sizeof(uint64_t));
}

static uint64_t ledger_sum(const uint64_t *ledger, size_t entries) {
	uint64_t sum = 0;
	for (size_t i = 0; i < entries; i++)
		sum = sum * 1099511628211u ^ ledger[i];
	return sum;
}

static uint64_t text_hash(const char *text, size_t length) {
	uint64_t hash = 14695981039346656037u;
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
	return hash;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"unsafe"
)

var words = strings.Fields(`paid late order parcel returned address checked twice customer called back about
	the missing invoice gift wrapped deliver after five leave at door neighbour`)

type record struct {
	name  string
	price float64
	tags  []uint32
	next  *record
}

type source uint64

func (s *source) below(bound uint64) uint64 {
	*s ^= *s << 13
	*s ^= *s >> 7
	*s ^= *s << 17
	return uint64(*s) >> 11 % bound
}

func (s *source) sentence(count int) string {
	parts := make([]string, count)
	for i := range parts {
		parts[i] = words[s.below(uint64(len(words)))]
	}
	return strings.Join(parts, " ")
}

func textHash(text string) uint64 {
	letters := []byte(text)
	return uint64(C.text_hash((*C.char)(unsafe.Pointer(&letters[0])), C.size_t(len(letters))))
}

// digest visits the records in the order of their keys. Every eighth name is hashed by C.
func digest(records map[string]*record) uint64 {
	keys := make([]string, 0, len(records))
	for key := range records {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	hash := uint64(7)
	for i, key := range keys {
		r := records[key]
		if i%8 == 0 {
			hash ^= textHash(r.name)
		}
		for _, letter := range []byte(r.name) {
			hash = hash*31 + uint64(letter)
		}
		for _, tag := range r.tags {
			hash = hash*31 + uint64(tag)
		}
		hash = hash*31 + uint64(r.price*100)
		if r.next != nil {
			hash = hash*31 + uint64(len(r.next.name))
		}
	}
	return hash
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	seed := source(88172645463325252)
	if len(os.Args) > 2 {
		number, err := strconv.ParseUint(os.Args[2], 10, 64)
		if err != nil {
			panic(err)
		}
		seed = source(number)
	}

	ledger := C.ledger_new(C.size_t(count * 8))
	defer C.free(unsafe.Pointer(ledger))
	entries := unsafe.Slice((*uint64)(unsafe.Pointer(ledger)), count*8)

	// Two workers fill their own halves, so that goroutines on several threads fault at once.
	done := make(chan struct{})
	for half := 0; half < 2; half++ {
		go func(own source, part []uint64) {
			for i := range part {
				part[i] = own.below(1 << 20)
			}
			done <- struct{}{}
		}(seed+source(half), entries[half*count*4:(half+1)*count*4])
	}

	records := make(map[string]*record)
	var last *record
	for i := 0; i < count; i++ {
		r := &record{name: seed.sentence(6), price: float64(seed.below(1000000)) / 100, next: last}
		for tags := 1 + seed.below(8); tags > 0; tags-- {
			r.tags = append(r.tags, uint32(seed.below(1000)))
		}
		records[fmt.Sprintf("%s-%d", r.name[:4], i)] = r
		if last = r; seed.below(16) == 0 {
			last = nil
		}
	}
	<-done
	<-done
	fmt.Printf("built   %d %016x\n", len(records), digest(records))
	fmt.Printf("ledger  %016x\n", uint64(C.ledger_sum(ledger, C.size_t(count*8))))

	for key := range records {
		if textHash(key)%3 == 0 {
			delete(records, key)
		}
	}
	runtime.GC()
	fmt.Printf("renewed %d %016x\n", len(records), digest(records))
}
