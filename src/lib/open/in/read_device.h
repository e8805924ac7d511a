/* A GPU that tensors are read onto: copies from memory of the host, through pinned pieces. */
#ifndef SL_READ_DEVICE_H
#define SL_READ_DEVICE_H

#include <stdint.h>

#include "mem.h"

struct sl_read_device;

/** "cuda:0", or a UUID. SL_E_USAGE: another name; SL_E_GPU: no driver, no such GPU; SL_E_NO_SPACE.
 * Retains the GPU's primary context until it is closed. */
struct sl_read_device *sl_read_device_open(const char *name, struct sl_err *err);
/** Nothing is on its way any more. NULL is fine. */
void sl_read_device_close(struct sl_read_device *device);

/**
 * Copy to a GPU; the bytes are there when this returns.
 *
 * @to      a device pointer.
 * @from    `bytes` bytes of the host.
 * @return  0, or -1: SL_E_GPU, SL_E_NO_SPACE.
 *
 * Any thread, one after the other: it waits for those before.
 */
int sl_read_device_copy(struct sl_read_device *device, void *to, const void *from, uint64_t bytes,
                        struct sl_err *err);
/** The same with zeros. */
int sl_read_device_zero(struct sl_read_device *device, void *to, uint64_t bytes,
                        struct sl_err *err);

#endif
