/*
 * In the programs that have one thread (`one_thread` in tests/CMakeLists.txt): another is an error,
 * so that what is left out under the thread sanitizer is nothing that it could see.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument)
{
    (void)thread;
    (void)attributes;
    (void)run;
    (void)argument;
    fputs("this test starts a thread: take its name from `one_thread` in tests/CMakeLists.txt\n",
          stderr);
    abort();
}
