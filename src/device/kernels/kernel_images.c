/*
 * The build writes kernel_images_data.h: rows SL_IMAGE(name, arch, ptx, file) and the text that
 * names them. The assembler puts the files' bytes here; nothing else is needed for it.
 */
#include "kernel_images.h"

#include "kernel_images_data.h"

#define SL_IMAGE(name, arch, is_ptx, file)                                                         \
    __asm__(".pushsection .rodata\n.balign 64\nsl_image_" #name ":\n.incbin \"" file               \
            "\"\nsl_image_end_" #name ":\n.byte 0\n.popsection\n");                                \
    extern const uint8_t sl_image_##name[], sl_image_end_##name[];
SL_IMAGES
#undef SL_IMAGE

static const struct sl_kernel_image images_built[] = {
#define SL_IMAGE(name, arch, is_ptx, file)                                                         \
    {#name, arch, is_ptx, sl_image_##name, sl_image_end_##name},
    SL_IMAGES
#undef SL_IMAGE
    {0},
};
static struct {
    const struct sl_kernel_image *images;
    size_t count;
} replaced;

const struct sl_kernel_image *sl_kernel_images(size_t *count)
{
    *count = replaced.images ? replaced.count : sizeof(images_built) / sizeof(*images_built) - 1;
    return replaced.images ? replaced.images : images_built;
}

const char *sl_kernel_images_text(void)
{
    return SL_IMAGES_TEXT;
}

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

void sl_kernel_images_replace(const struct sl_kernel_image *images, size_t count)
{
    replaced.images = images;
    replaced.count = count;
}
