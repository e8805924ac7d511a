"""What the Python module does with a pool that a test serves: run by test_pool_clients.c, argument: the socket."""
import sys

import sluice

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

own = sluice.attach("m", socket=socket, writable=True, timeout=60)
own["a"].memoryview().cast("f")[0] = 42.0
assert model["a"].memoryview().cast("f")[0] == 1.0

loading = sluice.attach("loading", socket=socket, timeout=60)
assert loading["a"].ready and not loading["b"].ready and not loading.ready
assert loading["a"].memoryview().cast("f")[999] == 1.0
refused("TIMEOUT", loading["b"].wait, 0.05)
refused("TIMEOUT", loading.wait, 0.05)
assert model.wait(60) is model and model["a"] is model["a"] and "d" not in model and model.get("d") is None
refused("NOT_FOUND", sluice.attach, "none", socket=socket)

with sluice.Deposit(model, "key", 4096, socket=socket) as deposit:
    deposit.add("fused", "BF16", (2, 3), bytes(range(12)))
with sluice.Deposit(model, "strided", 4096, socket=socket) as deposit:
    room = deposit.room("t", "I16", (2, 3), (4, 1))
    room.memoryview()[:] = bytes(range(14))
    deposit.room("scalar", "F32", ()).memoryview().cast("f")[0] = 2.5
    deposit.room("empty", "F8_E5M2", (0, 3))
strided = sluice.attach("m", key="strided", socket=socket, timeout=60)
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
derived = sluice.attach("m", key="key", socket=socket, timeout=60)
assert derived["fused"].tobytes() == bytes(range(12)) and derived["fused"].shape == (2, 3)
assert derived.identity == model.identity and derived.key == "key"
assert refused("INTEGRITY", sluice.Deposit, model, "key", 4096, socket=socket).code == "exists"

kept = model["b"].memoryview()
del model, tensor, view, own
assert kept.cast("f")[5] == 2.0  # what is looked at stays mapped
print("ok")
