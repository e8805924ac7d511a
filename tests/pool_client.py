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
assert model["a"].__dlpack_device__() == (1, 0)
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
refused("NOT_FOUND", sluice.attach, "none", socket=socket)

with sluice.Deposit(model, "key", 4096, socket=socket) as deposit:
    deposit.add("fused", "BF16", (2, 3), bytes(range(12)))
derived = sluice.attach("m", key="key", socket=socket, timeout=60)
assert derived["fused"].tobytes() == bytes(range(12)) and derived["fused"].shape == (2, 3)
assert derived.identity == model.identity and derived.key == "key"
assert refused("INTEGRITY", sluice.Deposit, model, "key", 4096, socket=socket).code == "exists"

kept = model["b"].memoryview()
del model, tensor, view, own
assert kept.cast("f")[5] == 2.0  # what is looked at stays mapped
print("ok")
