/* What stands in headers of gRPC over HTTP/2, as text. */
#ifndef SL_GRPC_WORDS_H
#define SL_GRPC_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "grpc.h"

/** Escaped text and its 0. */
#define SL_GRPC_ESCAPED_BYTES 1024

/** grpc-timeout: one to eight digits and one of H M S m u n, in nanoseconds. Beyond what fits is
 * UINT64_MAX. False: it is malformed. */
bool sl_grpc_timeout_parse(const char *text, size_t bytes, uint64_t *ns);

/** Is it application/grpc, application/grpc+proto, or the first with parameters? */
bool sl_grpc_is_content_type(const char *text, size_t bytes);

/**
 * grpc-message: bytes outside 0x20 to 0x7e and % as %XX. Text that is too long ends early, with
 * "...", between two characters; what is not UTF-8 becomes '?'. Returns the bytes without the 0.
 */
size_t sl_grpc_escape(const char *text, char escaped[SL_GRPC_ESCAPED_BYTES]);

#endif
