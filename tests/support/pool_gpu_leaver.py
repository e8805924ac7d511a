"""A client that leaves while the GPU works with its tensors: run by test_api_gpu.c on the fake driver, arguments: the socket, and how it leaves.

In the fake driver a copy takes 20 ms, and memory that is unmapped under work that was asked for is a fault, which every later call tells."""
import ctypes
import os
import sys

import sluice

socket, how = sys.argv[1:3]
COPIES = 10
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)


def begin_work(address, bytes_each):
    """Copies of a tensor to the host, one after another; the stream, and where they go."""
    context, stream, host = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(COPIES * bytes_each), 0)
    for i in range(COPIES):
        call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host.value + i * bytes_each), ctypes.c_uint64(address), ctypes.c_size_t(bytes_each), stream)
    return stream, host


model = sluice.attach("m", device="cuda:0", socket=socket, timeout=60)
tensor = model["a"]
stream, host = begin_work(tensor._address, tensor.nbytes)
if how == "drop":
    del model, tensor
    call("cuStreamSynchronize", stream)  # the context is whole
    assert set((ctypes.c_float * (COPIES * 1000)).from_address(host.value)) == {1.0}
    again = sluice.attach("m", device="cuda:0", socket=socket, timeout=60)
    assert again["a"].ready
elif how == "close":
    model.close()
    call("cuStreamSynchronize", stream)
    assert set((ctypes.c_float * (COPIES * 1000)).from_address(host.value)) == {1.0}
elif how == "raise":
    sys.stdout.write("ok\n")
    raise SystemExit(0)
elif how == "kill":
    os.write(1, b"ok\n")
    os._exit(0)
print("ok")  # model, tensors and work as they are
