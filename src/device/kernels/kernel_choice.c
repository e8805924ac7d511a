/* Which of the images a GPU can run. */
#include "kernel_images.h"

/* Of one kind, the newest that is not newer than the GPU; cubins only of its own family, which is
 * the major version. */
static const struct sl_kernel_image *newest(bool ptx, int major, int minor)
{
    size_t count;
    const struct sl_kernel_image *images = sl_kernel_images(&count), *best = NULL;
    for (size_t i = 0; i < count; i++) {
        const struct sl_kernel_image *image = &images[i];
        bool fits = image->arch <= 10 * major + minor && (ptx || image->arch / 10 == major);
        if (image->ptx == ptx && fits && (!best || image->arch > best->arch))
            best = image;
    }
    return best;
}

const struct sl_kernel_image *sl_kernel_image_for(int major, int minor)
{
    const struct sl_kernel_image *cubin = newest(false, major, minor);
    return cubin ? cubin : sl_kernel_ptx_for(major, minor);
}

const struct sl_kernel_image *sl_kernel_ptx_for(int major, int minor)
{
    return newest(true, major, minor);
}
