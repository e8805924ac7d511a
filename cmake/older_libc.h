/* What sluice and the distribution's archives take from a libc that is newer than the one that
   libsluice.so is linked with for -DSLUICE_STATIC=library; the compiler includes this first. None
   of it leaves the library. */
#ifndef OLDER_LIBC_H
#define OLDER_LIBC_H
#include <stddef.h>
#include <sys/syscall.h>

#ifndef SYS_openat2
#define SYS_openat2 __NR_openat2
#endif

/** glibc has it since 2.36. Gives up, as that one does, where the kernel has no random bytes. */
void arc4random_buf(void *to, size_t bytes);

/** glibc has it since 2.32. NULL for signals by which no program is asked to stop. */
const char *sigabbrev_np(int number);
#endif
