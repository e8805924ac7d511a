/* In place of the list that the build made (--wrap). */
#include "fake_images.h"

const struct sl_kernel_image *__real_sl_kernel_images(size_t *count);
const struct sl_kernel_image *__wrap_sl_kernel_images(size_t *count);

static struct {
    const struct sl_kernel_image *images;
    size_t count;
} other;

void fake_images_set(const struct sl_kernel_image *images, size_t count)
{
    other.images = images;
    other.count = count;
}

const struct sl_kernel_image *__wrap_sl_kernel_images(size_t *count)
{
    if (!other.images)
        return __real_sl_kernel_images(count);
    *count = other.count;
    return other.images;
}
