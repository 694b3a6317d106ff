// Holds so many MiB until its standard input ends. Says "held" when all is there.
package main

import (
	"fmt"
	"os"
	"strconv"
)

func main() {
	mib, _ := strconv.Atoi(os.Args[1])
	held := make([][]byte, mib)
	for i := range held {
		held[i] = make([]byte, 1<<20)
		for at := 0; at < len(held[i]); at += 64 {
			held[i][at] = byte(i + at/64)
		}
	}
	fmt.Println("held")
	os.Stdin.Read(make([]byte, 1))
	if held[mib/2][64] != byte(mib/2+1) {
		os.Exit(1)
	}
}
