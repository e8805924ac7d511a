/* The functions of hiredis' own reader, but for the one that makes arrays. It is asked by an int
 * before version 1.0, and by a size_t since. */
#include "redis_reader.h"

#include <pthread.h>

#if HIREDIS_MAJOR < 1
typedef int element_count;
#else
typedef size_t element_count;
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static redisReplyObjectFunctions own, bounded;

static void *make_array(const redisReadTask *task, element_count elements)
{
    return elements > SL_REDIS_ELEMENTS_MAX ? NULL : own.createArray(task, elements);
}

static void find_functions(void)
{
    redisReader *reader = redisReaderCreate();
    if (!reader)
        return;
    own = bounded = *reader->fn;
    bounded.createArray = make_array;
    redisReaderFree(reader);
}

redisReader *sl_redis_reader_new(void)
{
    pthread_once(&once, find_functions);
    return bounded.createArray ? redisReaderCreateWithFunctions(&bounded) : NULL;
}
