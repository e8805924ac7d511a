/*
 * Measurements on a real GPU, for scripts/gpu-check. Each section prints rows of CSV: section,
 * what, value, unit, what was wanted of it, verdict (ok, FAIL, skip, or nothing: only measured).
 *
 * Nothing here touches clocks, power, MIG, compute mode or persistence.
 */
#ifndef SL_GPU_CHECK_H
#define SL_GPU_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"
#include "err.h"

struct gpu_check {
    const struct sl_cuda *cuda;
    struct sl_cuda_device device;
    struct sl_cuda_context *context;
    struct sl_cuda_stream *stream;
    bool quick;  /* small sizes: does all of it run? */
    double peak; /* GB/s of pinned copies to the device; 0: not measured */
};

enum gpu_verdict { GPU_MEASURED, GPU_OK, GPU_FAIL, GPU_SKIP };

/** One row; counts failures. */
void gpu_row(const char *section, const char *what, double value, const char *unit,
             const char *wanted, enum gpu_verdict verdict);
/** A row of something that is right or wrong. */
void gpu_claim(const char *section, const char *what, bool good, const char *wanted);
/** End the program: the driver failed at what must not fail. */
void gpu_must(const struct gpu_check *check, int result, const char *what);
/** Open driver and device 0 and make its context current on this thread. */
void gpu_start(struct gpu_check *check);

/** Device memory that can be shared, readable and writable; fd: -1 unless wanted. */
struct gpu_area {
    uint64_t address, bytes, handle;
};
/** At least so many bytes. -1: there is not so much. */
int gpu_area_make(const struct gpu_check *check, uint64_t bytes, struct gpu_area *area);
void gpu_area_free(const struct gpu_check *check, struct gpu_area *area);
/** Map what another process exported; access: SL_CUDA_READ… Ends the program if that fails. */
void gpu_area_import(const struct gpu_check *check, int fd, uint64_t bytes, int access,
                     struct gpu_area *area);

/** Seconds on the device's clock that work on the stream takes: the median of `rounds`. */
double gpu_seconds(const struct gpu_check *check, unsigned rounds,
                   void (*work)(const struct gpu_check *check, void *arg), void *arg);
double gpu_now(void);
void gpu_fill_random(void *data, uint64_t bytes);
/** SHA-256 of device memory, read through a pinned buffer. */
void gpu_digest(const struct gpu_check *check, uint64_t address, uint64_t bytes, char hex[65]);
/** The number for a real run, or the small one. */
static inline uint64_t gpu_size(const struct gpu_check *check, uint64_t full, uint64_t quick)
{
    return check->quick ? quick : full;
}

/* The sections. */
void gpu_check_device(struct gpu_check *check);
void gpu_check_rules(struct gpu_check *check);
void gpu_check_costs(struct gpu_check *check);
/** The only one that runs without gpu_start(). */
void gpu_check_alone(struct gpu_check *check);
void gpu_check_copies(struct gpu_check *check);
void gpu_check_ring(struct gpu_check *check);
void gpu_check_kernels(struct gpu_check *check);
void gpu_check_attach(struct gpu_check *check);
void gpu_check_holders(struct gpu_check *check);
void gpu_check_host(struct gpu_check *check);
void gpu_check_errors(struct gpu_check *check);

/** A part of the rules: a process that does what none should. */
void gpu_check_unmapping(struct gpu_check *check);

/** What children of the sections do; -1: no such child. */
int gpu_check_child(char **arguments, int count);
/** A model of a pool through libsluice: SOCKET MODEL DEVICE. */
int gpu_check_client(char **arguments, int count);

#endif
