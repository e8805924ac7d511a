/*
 * What compilers for GPUs made of kernels.cu, carried in the program: an image for each family of
 * GPUs, and PTX, which the driver compiles itself, for those that are newer than all of them.
 * A build without such a compiler has none (cmake/SluiceCuda.cmake). Constants: any thread, for
 * good.
 */
#ifndef SL_KERNEL_IMAGES_H
#define SL_KERNEL_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_kernel_image {
    const char *name;          /* "sm_90", "compute_80" */
    int arch;                  /* 10 * major + minor of the compute capability */
    bool ptx;                  /* text, with a 0 at its end; else a cubin */
    const uint8_t *data, *end; /* aligned for the driver */
};

/** All of them; *count 0: this build has no kernels. */
const struct sl_kernel_image *sl_kernel_images(size_t *count);
/** "sm_80 sm_90 sm_100 compute_80 (NVRTC 12.9)", or "none: …" with the reason. */
const char *sl_kernel_images_text(void);
/** kernel_choice.c: the one for a GPU of this compute capability; NULL: there is none. */
const struct sl_kernel_image *sl_kernel_image_for(int major, int minor);
/** The newest PTX that such a GPU's driver can compile; NULL: there is none. */
const struct sl_kernel_image *sl_kernel_ptx_for(int major, int minor);

#endif
