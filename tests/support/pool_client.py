"""What the Python module does with a pool that a test serves: run by test_pool_clients.c, argument: the socket."""
import copy
import ctypes
import os
import pickle
import sys
import threading

import sluice
from sluice._library import library

socket = sys.argv[1]


def refused(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except sluice.SluiceError as error:
        assert error.kind == kind, (error.kind, str(error))
        return error
    raise AssertionError(f"{call} was not refused")


model = sluice.attach("m", socket=socket, timeout=60)
assert sorted(model) == ["a", "b", "c"] and len(model) == 3 and "a" in model
assert model.ready and model.nbytes > 0 and model.files == {}
for number, name in enumerate("abc", 1):
    tensor = model[name]
    assert tensor.ready and tensor.dtype == "F32" and tensor.shape == (1000,) and tensor.nbytes == 4000
    view = tensor.memoryview()
    assert view.readonly and set(view.cast("f")) == {float(number)}
assert model["a"].__dlpack_device__() == (1, 0) and model.device == model["a"].device == "cpu"
assert not hasattr(model["a"], "__cuda_array_interface__")
for asked in ({"copy": True}, {"dl_device": (2, 0)}):
    try:
        model["a"].__dlpack__(**asked)
        raise AssertionError(asked)
    except BufferError:
        pass
for version in (None, (1, 0)):
    capsule = model["a"].__dlpack__(max_version=version)
    assert ("dltensor_versioned" if version else '"dltensor"') in repr(capsule)
    del capsule  # nobody took it: it frees itself

for wrong, name in (("a\0one", "name"), (5, "name")):
    try:
        sluice.attach(wrong, socket=socket)
        raise AssertionError(wrong)
    except (ValueError, TypeError) as error:
        assert str(error).startswith(name), error
try:
    sluice.Deposit(model, "a\0two", 4096, socket=socket)
    raise AssertionError("a key with a NUL")
except ValueError as error:
    assert str(error).startswith("key"), error
try:
    sluice.attach("m", device=2.5, socket=socket)
    raise AssertionError("a device of 2.5")
except TypeError as error:
    assert str(error).startswith("device"), error


class Device:  # as torch.device
    type, index = "cpu", None


assert sluice.attach("m", Device(), socket=socket, timeout=60).device == "cpu"
assert (model["a"].size, model["a"].ndim, model["a"].itemsize) == (1000, 1, 4)
assert model.metadata() == {"format": "pt"}

with sluice.attach("m", socket=socket, timeout=60) as closed:
    left, looked = closed["a"], closed["b"].memoryview()
assert looked.cast("f")[0] == 2.0  # what is looked at stays mapped
for use in (lambda: closed["a"], lambda: closed.nbytes, left.memoryview, left.__dlpack__, lambda: left.ready):
    try:
        use()
        raise AssertionError("a model that is closed")
    except ValueError as error:
        assert "is closed" in str(error), error
del looked

again, other = pickle.loads(pickle.dumps((model, model["b"])))
assert again.identity == model.identity and again["a"].tobytes() == model["a"].tobytes()
assert other.tobytes() == model["b"].tobytes() and again._lease is other._lease and again._lease is not model._lease
assert copy.deepcopy(model["c"]).tobytes() == model["c"].tobytes()
stale = model.__reduce__()
error = refused("INTEGRITY", stale[0], stale[1][0], bytes(32))
assert error.code == "stale" and pickle.loads(pickle.dumps(error)).code == "stale"
del again, other

own = sluice.attach("m", socket=socket, writable=True, timeout=60)
own["a"].memoryview().cast("f")[0] = 42.0
assert model["a"].memoryview().cast("f")[0] == 1.0

loading = sluice.attach("loading", socket=socket, timeout=60)
assert loading["a"].ready and not loading["b"].ready and not loading.ready
assert loading["a"].memoryview().cast("f")[999] == 1.0
refused("TIMEOUT", loading["b"].wait, 0.05)
refused("TIMEOUT", loading.wait, 0.05)
# a and b share a page: a write to a would hide what comes into b, so it is not let in before b is there.
written = sluice.attach("loading", socket=socket, writable=True, timeout=60)
written["a"].wait(60)
refused("TIMEOUT", written["a"]._wait_with, library.sluice_wait, 0.05)
assert model.wait(60) is model and model["a"] is model["a"] and "d" not in model and model.get("d") is None
refused("NOT_FOUND", sluice.attach, "none", socket=socket)

# A load that ran out of time is over: it is not waited for again.
late = sluice.attach("late", socket=socket, timeout=60)
for wait in (late.wait, late["b"].wait, late["b"].tobytes):
    assert "readers.timeoutSeconds" in str(refused("TIMEOUT", wait))

# A daemon that is not there is an error at once, or waited for as long as there is time.
nowhere = socket + "-later"
refused("NET", sluice.attach, "m", socket=nowhere)
refused("NET", sluice.attach, "m", socket=nowhere, timeout=0.1)
found = []
waiter = threading.Thread(target=lambda: found.append(sluice.attach("m", socket=nowhere, timeout=60)))
waiter.start()
os.symlink(socket, nowhere)
waiter.join(60)
assert found and found[0]["a"].ready
os.unlink(nowhere)

with sluice.Deposit(model, "key", 4096, socket=socket) as deposit:
    deposit.add("fused", "BF16", (2, 3), bytes(range(12)))
with sluice.Deposit(model, "strided", 4096, socket=socket) as deposit:
    room = deposit.room("t", "I16", (2, 3), (4, 1))
    room.memoryview()[:] = bytes(range(14))
    deposit.room("scalar", "F32", ()).memoryview().cast("f")[0] = 2.5
    deposit.room("empty", "F8_E5M2", (0, 3))
strided = sluice.attach("m", deposit="strided", socket=socket, timeout=60)
assert strided["t"].strides == (4, 1) and strided["t"].tobytes() == bytes(range(14)) and room.tobytes() == bytes(range(14))
assert strided["scalar"].shape == () and strided["scalar"].memoryview().cast("f")[0] == 2.5
assert strided["empty"].shape == (0, 3) and strided["empty"].tobytes() == b"" and strided["empty"].nbytes == 0
if hasattr(memoryview, "__buffer__"):  # Python 3.12
    assert memoryview(strided["scalar"]).shape == () and memoryview(model["a"]).format == "f"
    refuse_buffer = 0
    for name in ("t", "empty"):
        try:
            memoryview(strided[name])
        except BufferError:
            refuse_buffer += 1
    assert refuse_buffer == 2
failed = sluice.Deposit(model, "failed", 4096, socket=socket)
for shape, data in (((3,), bytes(5)), ((2, 2), bytes(2))):
    try:
        failed.add("t", "U8", shape, data)
        raise AssertionError("other bytes than its shape says")
    except ValueError:
        pass
kept_room = failed.room("t", "U8", (4,))
failed.close()
kept_room.memoryview()[:] = b"good"  # its memory stays
try:
    failed.commit()
    raise AssertionError("a deposit that is over")
except ValueError:
    pass
derived = sluice.attach("m", deposit="key", socket=socket, timeout=60)
assert derived["fused"].tobytes() == bytes(range(12)) and derived["fused"].shape == (2, 3)
assert derived.identity == model.identity and derived.key == "key"
assert refused("INTEGRITY", sluice.Deposit, model, "key", 4096, socket=socket).code == "exists"

kept = model["b"].memoryview()
del model, tensor, view, own
assert kept.cast("f")[5] == 2.0  # what is looked at stays mapped
# DLPack tensors belong to nobody's interpreter: they may outlive this one, and an error may be pending when one is dropped.
ctypes.left_alone = [found[0]["a"].__dlpack__(), found[0]["b"].__dlpack__(max_version=(1, 0))]
found.clear()
try:
    capsule = sluice.attach("m", socket=socket, timeout=60)["a"].__dlpack__()
    raise RuntimeError("pending")
except RuntimeError:
    del capsule
print("ok")
