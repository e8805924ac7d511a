/* Other images of kernels than those that the build made. */
#ifndef SL_FAKE_IMAGES_H
#define SL_FAKE_IMAGES_H

#include "kernel_images.h"

/** These instead, borrowed; NULL: those of the build again. While no other thread looks. */
void fake_images_set(const struct sl_kernel_image *images, size_t count);

#endif
