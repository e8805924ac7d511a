/*
 * A GPU as a client of the pool uses it: somebody else's memory mapped, memory of its own made for
 * a deposit, the host's registered. Not for several threads at once. Contexts that callers have
 * current on their threads stay so. Nothing here allocates. Functions with an error return 0, or -1
 * with SLUICE_GPU (no driver, no such GPU, what the driver says) or SLUICE_NO_SPACE (the GPU has
 * not enough memory); they block as long as the driver does.
 */
#ifndef SL_API_DEVICE_H
#define SL_API_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"
#include "sluice.h"

enum { SL_API_DEVICE_TEXT_BYTES = 48 };

struct sl_api_device {
    const struct sl_cuda *cuda; /* NULL: closed */
    struct sl_cuda_device info;
    struct sl_cuda_context *context; /* the device's primary one, retained */
};

/** A failure of the driver as one of ours: -1. */
int sl_api_device_fail(const struct sl_cuda_err *err, struct sluice_error *error);
/** Is it meant as the name of a GPU, "cuda:0" or a UUID, "GPU-…", "MIG-…"? Any thread. */
bool sl_api_device_named(const char *name);
/** sl_api_device_open() of the one with this name. SLUICE_USAGE: it is not such a name. */
int sl_api_device_open_named(struct sl_api_device *device, const char *name,
                             struct sluice_error *error);
/** Open the GPU with this ordinal, as this process counts, and retain its primary context until
 * sl_api_device_close(). On failure the device is closed. */
int sl_api_device_open(struct sl_api_device *device, int ordinal, struct sluice_error *error);
/** The same for the GPU whose context the calling thread has, else the first one. */
int sl_api_device_open_current(struct sl_api_device *device, struct sluice_error *error);
/** Unmap and unregister everything first. A closed or zeroed one is fine. */
void sl_api_device_close(struct sl_api_device *device);
/** "GPU-1c8a2b9e-…": what the daemon is asked for. */
void sl_api_device_text(const struct sl_api_device *device, char text[SL_API_DEVICE_TEXT_BYTES]);

/** Round bytes up to the granularity of the GPU's memory; 0: the result would overflow. */
uint64_t sl_api_device_round(const struct sl_api_device *device, uint64_t bytes);

/** Memory that another process exported, to be read: one piece behind another in a range of
 * addresses. The driver takes its time over each reservation and each change of access, and a model
 * may have hundreds of pieces. */
struct sl_api_range {
    uint64_t address, bytes; /* bytes 0: none is reserved */
    uint64_t mapped;
};
/**
 * Reserve addresses for memory that sl_api_range_map() will map.
 *
 * @range   zeroed before; release it. After a failure none is reserved.
 * @bytes   a multiple of what sl_api_device_round() gives.
 * @return  0, or -1: SLUICE_GPU, SLUICE_NO_SPACE.
 */
int sl_api_range_reserve(const struct sl_api_device *device, struct sl_api_range *range,
                         uint64_t bytes, struct sluice_error *error);
/**
 * Map a piece behind what the range has mapped so far.
 *
 * @range   reserved, with room for the piece: it is not checked. A failure leaves it as it was.
 * @fd      of the memory, as another process exported it; it stays the caller's.
 * @bytes   of the piece, as sl_api_device_round() gives them.
 * @map     out: a device pointer to it, until the range is released; it can be used after
 *          sl_api_range_allow().
 * @return  0, or -1: SLUICE_GPU, SLUICE_NO_SPACE.
 */
int sl_api_range_map(const struct sl_api_device *device, struct sl_api_range *range, int fd,
                     uint64_t bytes, void **map, struct sluice_error *error);
/** All that is mapped, at least one piece, may be read. */
int sl_api_range_allow(const struct sl_api_device *device, const struct sl_api_range *range,
                       struct sluice_error *error);
/** Settled before. One that is zeroed is fine. */
void sl_api_range_release(const struct sl_api_device *device, struct sl_api_range *range);

/**
 * Take memory of the GPU for ourselves and map it to be written.
 *
 * @bytes   as sl_api_device_round() gives them.
 * @handle  out: what sl_api_device_share() takes, until sl_api_device_drop().
 * @map     out: a device pointer, until sl_api_device_unmap().
 * @return  0, or -1: SLUICE_GPU, SLUICE_NO_SPACE; nothing is taken then.
 */
int sl_api_device_make(const struct sl_api_device *device, uint64_t bytes, uint64_t *handle,
                       void **map, struct sluice_error *error);
/**
 * Wait for the work of this GPU's primary context and of the one that the calling thread has, map
 * the memory read-only, and export it.
 *
 * @handle, map, bytes  of sl_api_device_make().
 * @fd                  out: the caller's.
 * @return              0, or -1: SLUICE_GPU, SLUICE_NO_SPACE. The memory may be read-only then;
 *                      where its message says so, it is not mapped any more.
 */
int sl_api_device_share(const struct sl_api_device *device, uint64_t handle, void *map,
                        uint64_t bytes, int *fd, struct sluice_error *error);
/** Before anything is unmapped or unregistered: wait for the work of this GPU's primary context and
 * of the one that the calling thread has; everywhere: of each GPU of the process. Not for contexts
 * of the caller's own that are current nowhere here. */
void sl_api_device_settle(const struct sl_api_device *device, bool everywhere);
/** Of sl_api_device_make(), with the same bytes. Settled before. */
void sl_api_device_unmap(const struct sl_api_device *device, void *map, uint64_t bytes);
/** Of sl_api_device_make(): the memory goes with its last mapping and descriptor. */
void sl_api_device_drop(const struct sl_api_device *device, uint64_t handle);

/**
 * Pin memory of the host that is mapped read-only, for fast copies by any context.
 *
 * @map     begins it; pinned until sl_api_device_unregister(), which comes before it is unmapped.
 * @bytes   its length.
 * @return  0, or -1: SLUICE_GPU, also where the device pins no such memory; SLUICE_NO_SPACE.
 */
int sl_api_device_register(const struct sl_api_device *device, void *map, uint64_t bytes,
                           struct sluice_error *error);
void sl_api_device_unregister(const struct sl_api_device *device, void *map);

#endif
