"""The Python package and what is made with it: a wheel that needs nothing else, types that NumPy lacks, starts from deposits."""
import json
import os
import random
import re
import subprocess
import sys

from checks_pool import SMALL_BYTES, TENSORS, GatedServer, library_of
from checks_serve import Node
from checks_wheel import USE, model_file
from harness import ROOT, Skip, check, in_starts, run_client, wait_for

ROOMS = ("client/api", "lib/open", "node/pool", "python")
TORCH = "/usr/bin/python3"  # the Python of Debian's python3-torch
EXAMPLE = os.path.join(ROOT, "examples", "torch_deposit.py")
DEPOSITOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pool_depositor.py")
START_STARTS = 5  # of the program: what a start from a deposit may take; typically a fifth of one
PATIENCE = 180


class FilePool:
    """A daemon whose one model, m, is a directory of files, in its pool."""

    def __init__(self, h, uri, device="host", env=None, ready=True):
        self.h, self.node, self.device = h, Node(h), device
        self.path = os.path.join(self.node.place, "pool.sock")
        self.node.configure(f"""pool: {{socket: {self.path}}}
---
apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: m}}
source: {{uri: "{uri}"}}
sink: {{pool: {{device: "{device}"}}}}
""", budget="2GiB")
        self.node.start(env=env)
        if ready:
            self.node.await_state("m")

    def environment(self):
        return self.h.environment({"SLUICE_LIBRARY": library_of(self.h), "PYTHONPATH": os.path.join(ROOT, "python"),
                                   "PYTHONDONTWRITEBYTECODE": "1"})

    def python(self, *words, program=TORCH, env=None):
        """What it prints; it must succeed."""
        done = subprocess.run([program, *words], capture_output=True, text=True, env=env or self.environment(),
                              stdin=subprocess.DEVNULL, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr[-800:]
        return done.stdout + done.stderr

    def held(self):
        """Bytes of all versions of the model, derived ones and those that are being deposited included."""
        return sum(version["bytes"] for version in self.node.model("m")["versions"])

    def keys(self):
        return [version["key"] for version in self.node.model("m")["versions"] if version.get("key")]

    def end(self):
        assert self.node.end() == 0


@check("nginx", smoke=True)
def python_opens_and_pulls_a_model(h, nginx):
    """sluice.open over HTTP and of a file, and sluice.pull, in a Python without other packages: the bytes of a tensor."""
    name, place = "opened.safetensors", h.fresh()
    model_file(os.path.join(nginx.root, name))
    env = h.environment({"SLUICE_LIBRARY": library_of(h), "PYTHONPATH": os.path.join(ROOT, "python"), "PYTHONDONTWRITEBYTECODE": "1"})
    done = subprocess.run([sys.executable, "-c", USE, f"{nginx.http}/{name}", place], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]


def started(text):
    """(was it attached, ms of the start, the answer of the model)"""
    found = re.search(r"(attached|loaded) .*? in ([0-9.]+) ms.*\nnext token: (\d+)", text)
    assert found, text
    return found[1] == "attached", float(found[2]), int(found[3])


def need_torch():
    if subprocess.run([TORCH, "-c", "import torch, numpy"], capture_output=True).returncode:
        raise Skip("no torch: install python3-torch")


def attach_half(pool, env, device):
    """The exit code of who attaches to the deposit of kill_in_mid_deposit()."""
    return pool.h.sluice("pool", "--socket", pool.path, "attach", "m", "--key", "half", "--device", device, env=env).code


def kill_in_mid_deposit(pool, more=None, device="cpu"):
    """A depositor that is killed with half of it written: nothing is left, and the next one may begin."""
    env, place = {**pool.environment(), **(more or {})}, "host" if device == "cpu" else device
    deposit = [TORCH, DEPOSITOR, pool.path, "m", "half", device]
    before = pool.held()
    process = subprocess.Popen(deposit, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pool.h.processes.append(process)
    assert process.stdout.readline() == b"half\n"
    assert pool.held() == before + (2 << 20), "what is announced counts"
    assert attach_half(pool, more, place) == 4, "it is being deposited"
    process.kill()
    process.wait()
    wait_for("an end of the deposit", lambda: pool.held() == before)
    assert attach_half(pool, more, place) == 4 and "half" not in pool.keys(), "half a deposit"
    again = subprocess.run(deposit, env=env, input=b"commit\n", capture_output=True)
    assert again.returncode == 0 and "half" in pool.keys(), again.stderr
    assert attach_half(pool, more, place) == 0


def deposits_of(h, name):
    """The folder that the example makes, and a pool of it."""
    need_torch()
    source = h.directory(name)
    subprocess.run([TORCH, EXAMPLE, "--make", source], check=True, env={**h.environment(), "SLUICE_LIBRARY": library_of(h),
                                                                       "PYTHONPATH": os.path.join(ROOT, "python")})
    return source, FilePool(h, f"file://{source}/")


@check(alone=True, late=True)  # it measures time
def a_start_from_a_deposit_takes_milliseconds(h):
    """examples/torch_deposit.py: what the second start takes, in starts of the program."""
    _, pool = deposits_of(h, "torch-timed")
    start = [EXAMPLE, "m", "--socket", pool.path]
    first = started(pool.python(*start))
    again = in_starts(h, START_STARTS, lambda: started(pool.python(*start))[1] / 1000)
    pool.end()
    return f"first start {first[1]:.0f} ms, later ones {1000 * again:.2f} ms"


@check()
def a_second_start_attaches_to_what_the_first_deposited(h):
    """examples/torch_deposit.py: the first start fuses and deposits, the second computes the same; another key, a depositor
    killed in mid-deposit, and a source that changed are as documented."""
    source, pool = deposits_of(h, "torch-deposit")
    start = [EXAMPLE, "m", "--socket", pool.path]
    first = started(pool.python(*start))
    second = started(pool.python(*start))
    assert not first[0] and second[0] and first[2] == second[2], (first, second)
    other = pool.python(*start, "--dtype", "float64")
    assert "(absent)" in other and not started(other)[0], other
    assert len(pool.keys()) == 2
    kill_in_mid_deposit(pool)
    change(pool, source)
    third = pool.python(*start)
    assert "(stale)" in third and not started(third)[0], third
    assert started(third)[2] != first[2], "the weights of the old version"
    assert started(pool.python(*start))[0]
    pool.end()
    return f"first start {first[1]:.0f} ms, second {second[1]:.2f} ms"


def change(pool, source):
    """Another version of the source, and the daemon told to look."""
    path = os.path.join(source, "model.safetensors")
    before = pool.node.model("m")["version"]
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - (4 << 20))
        file.write(random.Random(5).randbytes(4 << 20).replace(b"\x7f", b"\x3f").replace(b"\xff", b"\xbf"))
    os.utime(path, (1, 1))
    assert pool.node.ask("POST", "/v1/models/m/load", "")[0] == 202
    wait_for("another version", lambda: pool.node.model("m")["version"] != before)
    pool.node.await_state("m")


# ---- a GPU ----------------------------------------------------------------------------------------

ON_GPU = """
import ctypes, sys, sluice
socket, device, key = sys.argv[1:]
model = sluice.attach("m", device, deposit=key or None, socket=socket, timeout=120)
def look(tensor):
    interface = tensor.__cuda_array_interface__
    return bytes((ctypes.c_uint8 * tensor.nbytes).from_address(interface["data"][0]))
if key:
    assert set(look(model["first"])) == {1} and set(look(model["second"])) == {2}
else:
    assert look(model["F16"]).hex() == "0000003c00c000380044004c" and look(model["scalar"]).hex() == "00002040"
    capsule = model["BF16"].__dlpack__(stream=1)
assert model.device == device and all(tensor.device == device for tensor in model.values())
print("right")
"""


def fake_driver(h):
    """The environment of a process that sees two GPUs of the tests' driver."""
    place = os.path.join(os.path.dirname(h.program), "tests", "fake_cuda")
    if not os.path.exists(os.path.join(place, "libcuda.so.1")):
        raise Skip("no fake driver beside the program: the tests are not built")
    return {"LD_LIBRARY_PATH": place, "FAKE_CUDA_DEVICES": "2"}


@check()
def python_uses_a_model_on_a_gpu_of_a_daemon(h):
    """A daemon that keeps a model on its second GPU (the fake driver's): a client to which that is the first GPU reads it, with
    DLPack and __cuda_array_interface__; deposits on the GPU, one killed half way; a GPU that the model is not on."""
    source = h.directory("types")
    write_types(source)
    driver = fake_driver(h)
    pool = FilePool(h, f"file://{source}/", "cuda:1", driver)
    other = {**driver, "FAKE_CUDA_VISIBLE": "1,0"}
    assert "right" in pool.python("-c", ON_GPU, pool.path, "cuda:1", "", env={**pool.environment(), **driver})
    assert "right" in pool.python("-c", ON_GPU, pool.path, "cuda:0", "", env={**pool.environment(), **other})
    wrong = h.sluice("pool", "--socket", pool.path, "attach", "m", "--device", "cuda:0", env=driver)
    wrong.expect(2, "the model 'm' is in memory of 'cuda:1'")
    kill_in_mid_deposit(pool, other, "cuda:0")
    assert "right" in pool.python("-c", ON_GPU, pool.path, "cuda:1", "half", env={**pool.environment(), **driver})
    pool.end()


AS_TENSOR = """
import sys, sluice, torch
model = sluice.attach("m", "cuda:0", socket=sys.argv[1], timeout=120)
for take in (torch.as_tensor, torch.tensor):
    try:
        take(model["F16"])
        raise SystemExit(f"{take} takes memory that is said to be read-only")
    except TypeError as error:
        assert "read only flag" in str(error), error
print("refused by torch", torch.__version__)
"""


@check()
def torch_says_why_it_takes_no_tensor_of_a_gpu_by_its_interface(h):
    """torch.as_tensor() and torch.tensor() go by __cuda_array_interface__ and refuse its read-only flag in a sentence, as the handbook says."""
    need_torch()
    source = h.directory("types")
    write_types(source)
    driver = fake_driver(h)
    pool = FilePool(h, f"file://{source}/", "cuda:0", driver)
    said = pool.python("-c", AS_TENSOR, pool.path, env={**pool.environment(), **driver})
    pool.end()
    return said.strip()


IN_MID_LOAD = """
import ctypes, hashlib, json, sys, sluice
socket, last = sys.argv[1:]
model = sluice.attach("m", "cuda:0", socket=socket, timeout=120)
def digest(name):
    tensor = model[name]
    place = tensor.__cuda_array_interface__["data"][0]  # waits for this tensor alone
    return hashlib.sha256((ctypes.c_uint8 * tensor.nbytes).from_address(place)).hexdigest()
print(digest("t0"), model.ready, model[last].ready, flush=True)
sys.stdin.readline()
print(digest(last), flush=True)
"""


@check()
def tensors_of_a_gpu_can_be_used_in_mid_load(h):
    """A client attaches to a model on its way into a GPU (the fake driver's) and uses its first tensor before its last has come."""
    driver, server = fake_driver(h), GatedServer(SMALL_BYTES)
    pool = FilePool(h, server.url, "cuda:0", driver, ready=False)
    last = TENSORS - 1
    client = subprocess.Popen([TORCH, "-c", IN_MID_LOAD, pool.path, f"t{last}"], env={**pool.environment(), **driver},
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    h.processes.append(client)
    assert client.stdout.readline().split() == [server.digests[0], "False", "False"]
    server.gate.set()
    rest, _ = client.communicate("go\n", timeout=PATIENCE)
    assert rest.strip() == server.digests[last] and client.returncode == 0, "wrong bytes"
    pool.end()
    server.close()


# ---- the wheel -------------------------------------------------------------------------------------

TYPES = """
import sys, numpy, ml_dtypes, sluice
model = sluice.attach("m", socket=sys.argv[1])
for name in ("BF16", "F8_E4M3", "F8_E5M2"):
    array = model[name].numpy()
    assert array.dtype == getattr(ml_dtypes, {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}[name])
    assert array.astype("f4").tolist() == [[0.0, 1.0, -2.0], [0.5, 4.0, 16.0]] and not array.flags.writeable
half = numpy.from_dlpack(model["F16"])
assert half.tolist() == [[0.0, 1.0, -2.0], [0.5, 4.0, 16.0]]
assert model["scalar"].numpy().shape == () and float(model["scalar"].numpy()) == 2.5
assert float(numpy.from_dlpack(model["scalar"])) == 2.5
assert model["empty"].numpy().shape == (0, 3) and numpy.from_dlpack(model["empty"]).shape == (0, 3)
assert numpy.asarray(model["F16"]).dtype == numpy.float16
print("types", numpy.__version__)
"""
TORCH_TYPES = """
import sys, torch, sluice
model = sluice.attach("m", socket=sys.argv[1])
for name, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16)):
    tensor = model[name].torch()
    assert tensor.dtype == dtype and tensor.float().tolist() == [[0.0, 1.0, -2.0], [0.5, 4.0, 16.0]]
for name in ("F8_E4M3", "F8_E5M2"):
    short = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}[name]
    if hasattr(torch, short):
        assert model[name].torch().float().tolist() == [[0.0, 1.0, -2.0], [0.5, 4.0, 16.0]]
    else:
        try:
            model[name].torch()
            raise SystemExit("a type that torch has not")
        except TypeError as error:
            assert short in str(error)
assert float(model["scalar"].torch()) == 2.5 and model["scalar"].torch().dim() == 0
assert tuple(model["empty"].torch().shape) == (0, 3)
assert model["BOOL"].torch().dtype == torch.bool and model["BOOL"].torch().tolist() == [True, False, True]
model["F16"].torch()[0, 0] = 7  # private by default; arrays of NumPy are read-only
assert not model["F16"].numpy().flags.writeable and not model["empty"].numpy().flags.writeable
assert model["F16"].torch()[0, 0] == 7 and sluice.attach("m", socket=sys.argv[1])["F16"].numpy()[0, 0] == 0
import numpy
refused = sluice.attach("m", socket=sys.argv[1])
try:
    numpy.from_dlpack(refused["BF16"])
    raise SystemExit("NumPy has bfloat16 now")
except Exception as error:
    assert "NULL" not in str(error), error
refused.close()
# A tensor may outlive the interpreter, in a module, or in a cycle of modules that is never collected.
torch.kept = sluice.attach("m", socket=sys.argv[1])["BF16"].torch()
net = torch.nn.Module()
net.weight, net.me = torch.nn.Parameter(model["F16"].torch()), [net]
torch.net = net
print("types", torch.__version__)
"""
# [[0, 1, -2], [0.5, 4, 16]]
VALUES = {"BF16": "0000803f00c0003f80408041", "F16": "0000003c00c000380044004c", "F8_E4M3": "0038c0304858",
          "F8_E5M2": "003cc038444c"}


def write_types(directory):
    """One safetensors file with every type that NumPy lacks, a scalar, and a tensor without bytes."""
    tensors = {name: (name, [2, 3], bytes.fromhex(text)) for name, text in VALUES.items()}
    tensors["scalar"] = ("F32", [], bytes.fromhex("00002040"))
    tensors["empty"] = ("F32", [0, 3], b"")
    tensors["BOOL"] = ("BOOL", [3], b"\1\0\1")
    head, data = {}, b""
    for name, (dtype, shape, value) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(head).encode()
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def make_environment(h):
    """A fresh virtual environment with the package from this checkout and what NumPy lacks; its Python."""
    place = os.path.join(h.directory("python"), "venv")
    if subprocess.run([sys.executable, "-m", "venv", place], capture_output=True).returncode:
        raise Skip("this Python makes no environments")
    env = {**os.environ, "CC": "false", "CXX": "false", "PYTHONDONTWRITEBYTECODE": "1", "SLUICE_LIBRARY": library_of(h)}
    done = run_client([os.path.join(place, "bin", "pip"), "install", "--quiet", os.path.join(ROOT, "python"), "ml_dtypes"], env=env)
    if done.returncode and "No matching distribution found for" in done.stderr:
        raise Skip("no package registry can be reached")
    assert done.returncode == 0, done.stderr[-800:]
    return os.path.join(place, "bin", "python"), place


@check()
def the_python_package_carries_its_library(h):
    """pip install ./python in a fresh environment, with no compiler: libsluice and types are in it, and it needs nothing else;
    bfloat16 and float8 by ml_dtypes, scalars, tensors without bytes."""
    python, place = make_environment(h)
    show = ("import os, sluice; place = os.path.dirname(sluice.__file__); "
            "from importlib.metadata import version; "
            "print(version('sluice-weights'), sluice.__version__, os.path.exists(os.path.join(place, 'py.typed')), "
            "next(line.split()[-1] for line in open('/proc/self/maps') if 'libsluice' in line))")
    done = subprocess.run([python, "-c", show], capture_output=True, text=True, env=h.environment(), cwd=h.disk)
    assert done.returncode == 0, done.stderr
    packaged, built, typed, loaded = done.stdout.split()
    assert packaged == built and typed == "True", done.stdout
    assert loaded.startswith(os.path.realpath(place)), f"the library is {loaded}"
    source = h.directory("types")
    write_types(source)
    pool = FilePool(h, f"file://{source}/")
    said = pool.python("-c", TYPES, pool.path, program=python, env=h.environment())
    pool.end()
    return f"version {packaged}, with NumPy {said.split()[-1]}"


@check()
def torch_takes_every_type_that_it_has(h):
    """bfloat16, float16, float8 where torch has it, a scalar, no bytes; a write to a writable view changes nobody else's."""
    need_torch()
    source = h.directory("types")
    write_types(source)
    pool = FilePool(h, f"file://{source}/")
    said = pool.python("-c", TORCH_TYPES, pool.path)
    pool.end()
    return f"torch {said.split()[-1]}"
