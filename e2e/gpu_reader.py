"""A process that reads tensors of a file onto a GPU of the fake driver's, whose memory can be looked at as any: argument path. It prints
True for each that came as it is in the file, then the kinds of the errors for GPUs that are not there."""
import ctypes
import sys
from ctypes import byref, c_int, c_uint64, c_void_p

import sluice

SIZE = 4 << 20


class Prop(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int), ("id", c_int), ("win32", c_void_p), ("flags", ctypes.c_uint8 * 8)]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", c_int), ("id", c_int), ("flags", c_int)]


def room(cuda):
    """Memory of the first GPU."""
    context, handle, address = c_void_p(), c_uint64(), c_uint64()
    for done in (
        cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(byref(context), 0), cuda.cuCtxSetCurrent(context),
        cuda.cuMemCreate(byref(handle), c_uint64(SIZE), byref(Prop(1, 1, 1, 0)), c_uint64(0)),
        cuda.cuMemAddressReserve(byref(address), c_uint64(SIZE), c_uint64(0), c_uint64(0), c_uint64(0)),
        cuda.cuMemMap(address, c_uint64(SIZE), c_uint64(0), handle, c_uint64(0)),
        cuda.cuMemSetAccess(address, c_uint64(SIZE), byref(Access(1, 0, 3)), c_uint64(1)),
    ):
        assert done == 0, done
    return address.value


def main(path):
    address = room(ctypes.CDLL("libcuda.so.1"))
    with sluice.open(path) as model:
        for tensor in model.values():
            tensor.copy_to(address, 0)
            print(ctypes.string_at(address, tensor.nbytes) == tensor.tobytes())
        for device in ("cuda:9", "xpu"):
            try:
                tensor.copy_to(address, device)
            except sluice.SluiceError as error:
                print(error.kind)


main(*sys.argv[1:])
