"""What the Python module does with memory of a GPU: run by test_api_gpu.c on the fake driver, argument: the socket.

The model is on the machine's second GPU, which this process sees as its first. Memory of the fake driver can be read as any."""
import ctypes
import sys

import sluice

socket = sys.argv[1]
COUNT = 1000
pointer = ctypes.PyDLL(None).PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


def is_mapped(address):
    with open("/proc/self/maps") as file:
        ranges = [line.split()[0].split("-") for line in file]
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


def raises(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"{call} did not raise {kind}")


def floats(address, count=COUNT):
    return set((ctypes.c_float * count).from_address(address))


def look(capsule, versioned):
    """(managed struct, its tensor) of a capsule, which stays its owner."""
    name = b"dltensor_versioned" if versioned else b"dltensor"
    kind = ManagedVersioned if versioned else Managed
    managed = kind.from_address(pointer(capsule, name))
    return managed, managed.tensor


model = sluice.attach("m", device="cuda", socket=socket, timeout=60)
assert model.device == "cuda:0" and sorted(model) == ["a", "b", "half", "none", "strided"], sorted(model)
a = model["a"]
assert a.ready and a.device == "cuda:0" and "on cuda:0" in repr(a) and a.__dlpack_device__() == (2, 0)

# DLPack: any stream, both versions, the read-only flag for who knows it.
for stream in (None, -1, 1, 2, 0x7F0000001000):
    capsule = a.__dlpack__(stream=stream)
    managed, tensor = look(capsule, False)
    assert (tensor.device_type, tensor.device_id, tensor.ndim, tensor.byte_offset) == (2, 0, 1, 0)
    assert tensor.shape[0] == COUNT and tensor.strides[0] == 1 and floats(tensor.data) == {1.0}
capsule = a.__dlpack__(max_version=(1, 3), dl_device=(2, 0), stream=1)
managed, tensor = look(capsule, True)
assert (managed.major, managed.flags) == (1, 1) and (tensor.device_type, tensor.device_id) == (2, 0)
for asked in ({"stream": 0}, {"stream": -2}, {"stream": "x"}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}, {"copy": True}):
    raises(BufferError, a.__dlpack__, **asked)
capsule = model["half"].__dlpack__()
tensor = look(capsule, False)[1]
assert (tensor.code, tensor.bits, tensor.lanes) == (4, 16, 1)
capsule = model["none"].__dlpack__()
assert look(capsule, False)[1].data is None

# __cuda_array_interface__, for types that NumPy has.
interface = model["b"].__cuda_array_interface__
assert interface == {"shape": (COUNT,), "typestr": "<f4", "data": (model["b"]._address, True), "version": 3, "strides": None,
                     "stream": None}, interface
assert floats(interface["data"][0]) == {2.0}
assert model["strided"].__cuda_array_interface__["strides"] == (16, 4)
assert not hasattr(model["half"], "__cuda_array_interface__")

# Whoever takes that keeps the tensor, and nothing else: CuPy's arrays do.
with sluice.attach("m", device="cuda", socket=socket, timeout=60) as lender:
    kept = lender["b"]
    place = kept.__cuda_array_interface__["data"][0]
assert is_mapped(place) and floats(place) == {2.0}
del kept
assert not is_mapped(place)

# The host cannot look at it; files are on the host.
for call in (a.memoryview, a.tobytes):
    assert "cuda:0" in str(raises(TypeError, call))
config = model.files["config.json"]
assert config.tobytes() == b"{}" and config.device == "cpu" and not hasattr(config, "__cuda_array_interface__")

# Deposits, in place.
with sluice.Deposit(model, "k", 2 * 4096, socket=socket) as deposit:
    room = deposit.room("w", "F32", (COUNT,))
    assert room.device == "cuda:0" and room.__cuda_array_interface__["data"][1] is False
    capsule = room.__dlpack__(max_version=(1, 0))
    managed, tensor = look(capsule, True)
    assert managed.flags == 0
    (ctypes.c_float * COUNT).from_address(tensor.data)[:] = [5.0] * COUNT
    raises(TypeError, deposit.add, "v", "F32", (1,), bytes(4))
assert floats(room._address) == {5.0}  # still there, and read-only

# What cannot be.
for kind, named in (("GPU", {"device": "cuda:1"}), ("GPU", {"device": "cuda:7"}), ("USAGE", {"register": True}),
                    ("USAGE", {"device": "cuda:0", "writable": True}), ("USAGE", {})):
    error = raises(sluice.SluiceError, sluice.attach, "m", socket=socket, timeout=60, **named)
    assert error.kind == kind, (named, error.kind, str(error))

capsule = a.__dlpack__()
address = look(capsule, False)[1].data
del model, a, config, room, deposit, call
assert floats(address) == {1.0}  # a capsule keeps what it points to
del capsule  # nobody took it, nor any of the others: all have freed themselves
assert not is_mapped(address)
print("ok")
