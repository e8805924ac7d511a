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

const struct sl_kernel_image *sl_kernel_images(size_t *count)
{
    *count = sizeof(images_built) / sizeof(*images_built) - 1;
    return images_built;
}

const char *sl_kernel_images_text(void)
{
    return SL_IMAGES_TEXT;
}
