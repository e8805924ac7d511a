/* hiredis' reader of replies, with a limit on what a server can have it allocate. */
#ifndef SL_REDIS_READER_H
#define SL_REDIS_READER_H

#include <hiredis/hiredis.h>

enum { SL_REDIS_ELEMENTS_MAX = 4096 /* of an array; the longest that is asked for has two */ };

/** redisReaderFree() it; NULL without memory. An array of more elements is an error of the reader:
 * hiredis makes room for all that is announced, and looks at all of it when it is freed. */
redisReader *sl_redis_reader_new(void);

#endif
