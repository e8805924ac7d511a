/* Allocations of libsluice that fail. For programs with the link options of SLUICE_API_ALLOC_FAIL
 * (CMakeLists.txt). */
#ifndef SL_API_ALLOC_FAIL_H
#define SL_API_ALLOC_FAIL_H

#include <stdint.h>

/** The nth from now on (1: the next one) of this thread fails; 0: none. */
void api_alloc_fail_at(uint64_t nth);

#endif
