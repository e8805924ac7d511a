#!/usr/bin/env python3
"""Writes golden.txt: values as F32 and F64 and what ml_dtypes and numpy make of them.

Run it with numpy and ml_dtypes installed: ./make_golden.py > golden.txt
Columns: type and code of the value; its codes as F16, BF16, F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ.
"""
import random

import ml_dtypes
import numpy as np

TYPES = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
         ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz]


def codes(value):
    """The bits of one value in every type."""
    out = []
    for kind in TYPES:
        cast = np.array([value]).astype(kind)
        out.append(f"{int(cast.view(f'u{cast.itemsize}')[0]):x}")
    return " ".join(out)


def main():
    random.seed(1)
    np.seterr(all="ignore")
    singles = [0, 1, 0x7f800000, 0x7fc00000, 0x7f7fffff, 0x33000000, 0x33000001, 0x477fefff, 0x477ff000,
               0x43e7ffff, 0x43e80000, 0x43e80001, 0x47700000, 0x476fffff, 0x43700000, 0x47600000]
    for exponent in range(100, 146):  # about the range of the small types, on and beside their borders
        for mantissa in (0, 0x080000, 0x100000, 0x0fffff, 0x100001, 0x180000, 0x300000, 0x001000, 0x001001):
            singles.append(exponent << 23 | mantissa)
    singles += [random.getrandbits(31) for _ in range(60)]
    for code in singles:
        for sign in (0, 1 << 31):
            value = np.array([code | sign], dtype=np.uint32).view(np.float32)[0]
            print("F32", f"{code | sign:x}", codes(value))
    for code in singles:  # values of F64 just off the borders, where rounding twice would show
        value = np.array([code], dtype=np.uint32).view(np.float32)[0]
        # ml_dtypes rounds twice from F64 to BF16, by way of F32: only what F32 holds is asked for
        print("F64", f"{int(np.array([value], dtype=np.float64).view(np.uint64)[0]):x}", codes(np.float64(value)))


if __name__ == "__main__":
    main()
