// Holds memory of some kind until its standard input ends: stays KIND MIB [KIND MIB]...
//
//   private    anonymous memory, which is written to all the time
//   noise      anonymous memory that does not compress
//   shared     MAP_SHARED without a file
//   memfd      a memfd that is written by write(2) and never mapped
//   file       a file of /dev/shm, mapped
//   left       a file of /dev/shm that nobody has open any more
//   sysv       a System V segment
//   locked     anonymous memory, locked
//   tenfold    what nine children and their parent share
//   bare       executes itself by a system call of its own, without an environment: the rest are its arguments
//
// What it writes does not compress to nothing. It prints "held" when all is there.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void *need(void *at) {
    if (at == MAP_FAILED || at == (void *)-1) {
        perror("stays");
        exit(9);
    }
    return at;
}

static void fill(char *at, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i += 64) {
        unsigned value = (unsigned)i * 2654435761u + seed;
        memcpy(at + i, &value, sizeof value);
    }
}

static void fill_with_noise(char *at, size_t bytes) {
    unsigned long value = 88172645463325252;
    for (size_t i = 0; i < bytes; i += sizeof value) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        memcpy(at + i, &value, sizeof value);
    }
}

static char *anonymous(size_t bytes, int kind) {
    return need(mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0));
}

static int ended(void) {
    struct pollfd input = {0, POLLIN, 0};
    char byte;
    return poll(&input, 1, 20) == 1 && read(0, &byte, 1) == 0;
}

int main(int argc, char **argv) {
    if (!strcmp(argv[1], "bare")) {
        char *none[] = {NULL};
        argv[1] = argv[0];
        return syscall(SYS_execve, "/proc/self/exe", argv + 1, none) ? 9 : 0;
    }
    char *private = NULL, path[64] = "";
    size_t private_bytes = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *kind = argv[i];
        size_t bytes = atoi(argv[i + 1]) * MIB;
        if (!strcmp(kind, "private")) {
            fill(private = anonymous(bytes, MAP_PRIVATE), private_bytes = bytes, i);
        } else if (!strcmp(kind, "noise")) {
            fill_with_noise(anonymous(bytes, MAP_PRIVATE), bytes);
        } else if (!strcmp(kind, "shared")) {
            fill(anonymous(bytes, MAP_SHARED), bytes, i);
        } else if (!strcmp(kind, "tenfold")) {
            char *at = anonymous(bytes, MAP_SHARED);
            for (int child = 0; child < 9 && fork(); child++)
                ;
            fill(at, bytes, i);
        } else if (!strcmp(kind, "locked")) {
            char *at = anonymous(bytes, MAP_PRIVATE);
            fill(at, bytes, i);
            if (mlock(at, bytes)) {
                perror("mlock");
                return 9;
            }
        } else if (!strcmp(kind, "sysv")) {
            int id = shmget(IPC_PRIVATE, bytes, 0600);
            char *at = need(shmat(id, NULL, 0));
            shmctl(id, IPC_RMID, NULL);
            fill(at, bytes, i);
        } else {
            int is_memfd = !strcmp(kind, "memfd"), is_left = !strcmp(kind, "left");
            snprintf(path, sizeof path, "/dev/shm/zfolio-test-stays-%d", getpid());
            int fd = is_memfd ? memfd_create("stays", 0) : open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
            if (is_memfd || is_left) {
                static char chunk[1 << 20];
                for (size_t done = 0; done < bytes; done += sizeof chunk) {
                    fill(chunk, sizeof chunk, done);
                    if (write(fd, chunk, sizeof chunk) != sizeof chunk) {
                        perror("write");
                        return 9;
                    }
                }
            } else if (ftruncate(fd, bytes) == 0) {
                fill(need(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)), bytes, i);
            }
            // It is looked at ten times a second.
            usleep(is_left ? 500000 : 0);
            if (!is_memfd) {
                close(fd);
            }
        }
    }
    puts("held");
    fflush(stdout);
    for (unsigned round = 0; !ended(); round++) {
        if (private) {
            fill(private, private_bytes, round);
        }
    }
    if (path[0]) {
        unlink(path);
    }
    return 0;
}
