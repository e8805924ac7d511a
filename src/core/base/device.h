/*
 * For code that both the host's C compiler and a compiler for GPUs take: C11 that is C++17, too,
 * without any library. Three compilers for GPUs are known: nvcc, NVRTC (which has no headers at
 * all) and clang (without NVIDIA's headers). Functions are SL_INLINE, so that each side makes its
 * own of them, and pointers are plain. Pure functions.
 */
#ifndef SL_DEVICE_H
#define SL_DEVICE_H

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#define UINT64_C(number) number##ull
#define INT64_MAX        UINT64_C(0x7fffffffffffffff)
#else
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#endif

#if defined(__CUDACC__) || defined(__CUDA__)
#define SL_ON_DEVICE 1
#if !defined(__CUDACC__)
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#endif
#define SL_INLINE static __device__ inline __attribute__((always_inline))
#define SL_UNROLL _Pragma("unroll")
#else
#define SL_ON_DEVICE 0
#define SL_INLINE    static inline __attribute__((always_inline))
#define SL_UNROLL
#endif

#if defined(__CUDACC__)
#define SL_COPY_BITS memcpy /* which these compilers know */
#else
#define SL_COPY_BITS __builtin_memcpy
#endif

/** A number of bytes of the same bits; nothing at all in machine code. */
SL_INLINE float sl_float_of(uint32_t bits)
{
    float value;
    SL_COPY_BITS(&value, &bits, sizeof(value));
    return value;
}

SL_INLINE uint32_t sl_bits_of(float value)
{
    uint32_t bits;
    SL_COPY_BITS(&bits, &value, sizeof(bits));
    return bits;
}

SL_INLINE uint64_t sl_bits_of_double(double value)
{
    uint64_t bits;
    SL_COPY_BITS(&bits, &value, sizeof(bits));
    return bits;
}

#endif
