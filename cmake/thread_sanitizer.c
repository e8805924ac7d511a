/*
 * In a program under the thread sanitizer, which keeps what it knows of a thread's signals from the
 * thread's first blocking call on: of a signal that comes within that one it may keep two records
 * and lose the one with the signal (GCC 12). So the first is made here, before anybody sends any.
 */
#include <poll.h>
#include <stddef.h>

__attribute__((constructor)) static void block_once(void)
{
    poll(NULL, 0, 0);
}
