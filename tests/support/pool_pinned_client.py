"""What the Python module does with memory of the host where the driver pins none that is mapped to be read: run by test_api_gpu.c on
the fake driver, argument: the socket."""
import asyncio
import ctypes
import sys
import time

import sluice

driver = ctypes.CDLL("libcuda.so.1")
model = sluice.attach("m", register=True, socket=sys.argv[1], timeout=60)
assert "sluice_copy" in model.unpinned, model.unpinned
assert sluice.attach("m", socket=sys.argv[1], timeout=60).unpinned is None
GRANULE = 2 << 20


class Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("device", ctypes.c_int),
                ("rest", ctypes.c_uint64 * 2)]


class Access(ctypes.Structure):
    _fields_ = [("place", ctypes.c_int), ("device", ctypes.c_int), ("flags", ctypes.c_int)]


def call(name, *arguments):
    assert getattr(driver, name)(*arguments) == 0, name


handle, address, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(GRANULE)
call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(Prop(1, 1, 1, 0)), ctypes.c_uint64(0))
call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
call("cuMemMap", address, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
call("cuMemSetAccess", address, size, ctypes.byref(Access(1, 0, 3)), ctypes.c_size_t(1))
for tensor in model.files.values():
    tensor.copy_to(address.value)  # the default stream
    tensor.copy_to(address.value)
    assert ctypes.string_at(address.value, tensor.nbytes) == tensor.tobytes()
model.close()


async def attach_in_vain():
    await asyncio.wait_for(sluice.aattach("m", register=True, socket=sys.argv[1] + "-later", timeout=20), 0.1)


begun = time.monotonic()
try:
    asyncio.run(attach_in_vain())
    raise AssertionError("attached to a pool that does not run")
except asyncio.TimeoutError:
    assert time.monotonic() - begun < 10  # it was canceled, and did not wait to its end
print("ok")
