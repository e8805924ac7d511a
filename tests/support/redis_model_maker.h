/* Small .tensors files for the tests of Redis. */
#ifndef SL_REDIS_MODEL_MAKER_H
#define SL_REDIS_MODEL_MAKER_H

#include <stddef.h>
#include <stdint.h>

struct made_tensor {
    const char *name;
    size_t name_bytes, bytes;
};
/**
 * A data version 1 file of `|u1` vectors with noise in them, as the format lays it out, but with
 * headers that hold noise as well: enough for whoever takes it for bytes. The metadata are of
 * 262144 bytes. free() it.
 */
uint8_t *make_tensors(const struct made_tensor *tensors, size_t count, size_t *bytes);

#endif
