/* The kernels that the fake driver knows. */
#include "fake_cuda.h"

const struct fake_kernel fake_kernels[] = {
    {0},
};
