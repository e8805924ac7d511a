"""The Python package's own tests beside the originals (safetensors, tensorizer, zipslicer), and safetensors' own tests against our door."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

from checks_pool import library_of
from checks_python import TORCH, fake_driver, need_torch
from harness import ROOT, Skip, check, one_at_a_time, run_client

ROOMS = ("client/api", "lib/open", "python")
PACKAGES = ("numpy<2", "ml_dtypes<0.5", "safetensors==0.8.0", "tensorizer==2.12.1", "zipslicer==0.8.1", "pytest<9", "fsspec", "mypy<2")
JAX = ("jax==0.10.2", "numpy<3", "ml_dtypes", "safetensors==0.8.0")
PYRIGHT = "pyright==1.1.414"
TESTS = os.path.join(ROOT, "python", "tests")
PATIENCE = 600

# safetensors' own tests that our door fails, and why.
FAILING = {"test_sparse": "the message that refuses sparse tensors has our words; its type is the same"}
UPSTREAM = ("test_simple.py", "test_pt_comparison.py", "test_pt_model.py", "test_handle.py", "test_multithreaded.py",
            "test_pread_backend.py", "test_threadable.py")
# `safetensors` is the door, for programs that import it.
ALIAS = """import sys, sluice.safetensors as door, sluice.safetensors.torch, sluice.safetensors.numpy, sluice.safetensors.flax
for name in ("torch", "numpy", "flax"):
    sys.modules["safetensors." + name] = sys.modules["sluice.safetensors." + name]
sys.modules["safetensors"] = door
"""

EXAMPLE = """import sys, torch, safetensors.torch as st
st.save_file({"a.weight": torch.arange(4096 * 64.0).reshape(4096, 64), "b": torch.ones(1 << 20)}, sys.argv[1])
torch.save({"w": torch.ones(4), "w_optimizer": torch.ones(4)}, sys.argv[2])
"""
# Twelve layers of 16 MiB, each of two tensors.
LAYERS = """import sys, torch, safetensors.torch as st
st.save_file({f"model.layers.{layer}.{name}.weight": torch.full((1 << 21,), 1.0 + layer) for layer in range(12) for name in ("up", "down")},
             sys.argv[1])
"""
# A base of two layers, and an adapter of a rank for one of them or for both, as PEFT writes it.
ADAPTERS = """import json, os, sys, torch, safetensors.torch as st
place, = sys.argv[1:]
torch.manual_seed(1)
st.save_file({"up.weight": torch.randn(32, 16), "down.weight": torch.randn(16, 32)}, os.path.join(place, "base.safetensors"))
for name, layers in (("one", {"up": (32, 16)}), ("two", {"up": (32, 16), "down": (16, 32)})):
    os.makedirs(os.path.join(place, name), exist_ok=True)
    st.save_file({f"base_model.model.{layer}.lora_{half}.weight": torch.randn((4, shape[1]) if half == "A" else (shape[0], 4))
                  for layer, shape in layers.items() for half in "AB"}, os.path.join(place, name, "adapter_model.safetensors"))
    with open(os.path.join(place, name, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(layers)}, file)
"""


def cache():
    return os.environ.get("SLUICE_CACHE") or os.path.join(ROOT, ".cache")


@one_at_a_time("python-{1}")
def environment_of(base, name, packages, *options):
    """The Python of an environment with these packages, which is made once."""
    mark = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    place = os.path.join(cache(), f"python-{name}-{mark}")
    python = os.path.join(place, "bin", "python")
    if os.path.exists(os.path.join(place, "whole")):
        return python
    done = subprocess.run([base, "-m", "venv", "--clear", *options, place], capture_output=True, text=True)
    if done.returncode:
        raise Skip("this Python makes no environments")
    done = run_client([python, "-m", "pip", "install", "--quiet", *packages], env=dict(os.environ))
    if done.returncode and "No matching distribution found for" in done.stderr:
        raise Skip("no package registry can be reached, or it has none for this Python")
    assert done.returncode == 0, done.stderr[-800:]
    with open(os.path.join(place, "whole"), "w"):
        pass
    return python


def environment_of_originals():
    """With what our doors stand in for."""
    need_torch()
    return environment_of(TORCH, "originals", PACKAGES, "--system-site-packages")


def environment(h, *more):
    path = os.pathsep.join([*more, os.path.join(ROOT, "python")])
    return h.environment({"SLUICE_LIBRARY": library_of(h), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1"})


def run_tests(h, *names, python=None, env=None):
    """How many ran, and what was skipped."""
    python = python or environment_of_originals()
    done = subprocess.run([python, "-W", "ignore", "-m", "unittest", "-v", *names], capture_output=True, text=True, cwd=TESTS,
                          env={**environment(h), **(env or {})}, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    skipped = len(re.findall(r"\.\.\. skipped ", done.stderr))
    ran = int(re.search(r"Ran (\d+) tests? in", done.stderr)[1])
    assert ran > skipped, "nothing ran"
    return f"{ran - skipped} tests" + (f", {skipped} skipped: this build lacks what they need" if skipped else "")


@check()
def python_opens_loads_streams_and_saves(h):
    """sluice.open and its like: mappings, slices, streams, modules, files, event loops, errors; what is small; parts of the pool's tensors;
    each element type; and that each public name says what it is."""
    return run_tests(h, "test_open", "test_small", "test_looks", "test_odd", "test_liar", "test_plain", "test_engines", "test_transformers", "test_lora", "test_parts", "test_types", "test_documented", "test_counterparts", "test_through", "test_values", "test_wrong")


@check()
def ways_to_read_are_crossed_with_what_is_read(h):
    """Encrypted or not, with meta tensors or without, nine ways to read, one connection or eight, a file or a server; modules without a second copy."""
    return run_tests(h, "test_crossed")


@check()
def python_changes_files_where_they_lie(h):
    """sluice.edit, read afterwards by safetensors, torch and tensorizer."""
    return run_tests(h, "test_edit")


@check()
def doors_answer_as_the_originals_do(h):
    """Each public call of safetensors, tensorizer and zipslicer beside ours, on the same input: results, types, errors."""
    return run_tests(h, "test_safetensors", "test_tensorizer", "test_tensorizer_more", "test_guarded", "test_zipslicer", "test_doors")


@check()
def each_public_call_of_the_originals_is_compared(h):
    """Every function, constructor and method that safetensors, tensorizer and zipslicer have is called in a test that calls ours, too."""
    return run_tests(h, "test_beside")


def lifetimes(of_forks):
    """The names of the tests of lifetimes: those of forks, which take as long as the others together, or the others."""
    with open(os.path.join(TESTS, "test_lifetimes.py"), encoding="utf-8") as file:
        found = re.findall(r"^    def (test_\w+)", file.read(), re.M)
    return [f"test_lifetimes.Lifetimes.{name}" for name in found if ("_fork" in name) == of_forks]


@check()
def models_and_tensors_outlive_what_they_may(h):
    """The interpreter, threads, cycles, interrupts; thousands of opens leave no descriptor and no mapping."""
    return run_tests(h, *lifetimes(of_forks=False))


@check()
def forked_processes_leave_what_their_parents_have(h):
    """They read and end, open again what their parent has open, and leave its streams and writers alone."""
    return run_tests(h, *lifetimes(of_forks=True))


@check(late=True)
def lifetimes_hold_under_the_address_sanitizer(h):
    """The same, threads and parts of tensors too, with a library that watches each access (scripts/build --sanitize address,undefined)."""
    watched = os.path.join(ROOT, "build-address", "lib", "libsluice.so.0")
    if not os.path.exists(watched):
        raise Skip("no build-address/lib/libsluice.so.0: scripts/build --sanitize address,undefined makes it")
    # The sanitizer's own library first; C++'s with it, whose exceptions it must find.
    runtime = [subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
               for name in ("libasan.so", "libstdc++.so.6")]
    return run_tests(h, "test_lifetimes", "test_threads", "test_engines",
                     env={"SLUICE_LIBRARY": watched, "LD_PRELOAD": " ".join(runtime), "ASAN_OPTIONS": "detect_leaks=0"})


@check()
def jax_arrays_are_loaded_and_saved(h):
    """JAX on the CPU: every type, slices, DLPack, safetensors' door for Flax beside the original."""
    return run_tests(h, "test_jax", "test_doors.Doors.test_safetensors_is_whole", python=environment_of(sys.executable, "jax", JAX))


@check()
def spawned_processes_open_models_again(h):
    """Models go to multiprocessing's spawned processes and to the workers of a torch DataLoader, which read them anew; another version is an
    error."""
    return run_tests(h, "test_spawned")


@check()
def a_wheel_says_that_a_daemon_is_of_another_version(h):
    """Calls of the pool from Python meet a daemon that speaks another version, refuses theirs, or says more than they know."""
    return run_tests(h, "test_pool_versions", python=sys.executable)


@check()
def whoever_waits_in_python_can_be_interrupted(h):
    """Ctrl-C, canceled tasks and streams that are left end reads from a server that says nothing more; bars show how far calls are."""
    return run_tests(h, "test_cancel")


@check()
def the_python_package_is_typed(h):
    """mypy --strict finds nothing, for the oldest Python that the package runs on and for the newest."""
    python = environment_of_originals()
    for version in ("3.9", "3.14"):
        done = subprocess.run([python, "-m", "mypy", "--strict", "--python-version", version, "--cache-dir", os.path.join(h.disk, "mypy"),
                               "--no-site-packages", "sluice"], capture_output=True, text=True, cwd=os.path.join(ROOT, "python"))
        assert done.returncode == 0 or f"Python {version} is not supported" in done.stderr, done.stdout[-3000:] + done.stderr


@check()
def python_reads_onto_a_gpu(h):
    """Memory of the fake driver's GPUs holds what the file has, by OpenTensor.copy_to and as torch lends it; GPUs and drivers that are not there
    are told."""
    python, path = environment_of_originals(), os.path.join(h.directory("onto"), "m.safetensors")
    subprocess.run([python, "-W", "ignore", "-c", EXAMPLE, path, path + ".pt"], check=True, env=environment(h))
    done = subprocess.run([python, os.path.join(ROOT, "e2e", "gpu_reader.py"), path], capture_output=True, text=True,
                          env={**environment(h), **fake_driver(h)}, timeout=PATIENCE)
    assert done.stdout.split() == ["True", "True", "GPU", "USAGE"], done.stdout + done.stderr
    return " and ".join([run_tests(h, "test_gpu", env=fake_driver(h)), run_tests(h, "test_gpu")])


@one_at_a_time("pyright")
def pyright(python):
    """Where pyright is, which is installed once."""
    if not shutil.which("node") or not shutil.which("npm"):
        raise Skip("pyright needs node and npm")
    place = os.path.join(cache(), PYRIGHT.replace("==", "-"))
    env = {**os.environ, "PYTHONPATH": place, "PYRIGHT_PYTHON_CACHE_DIR": os.path.join(place, "npm"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    if not os.path.exists(os.path.join(place, "whole")):
        done = run_client([python, "-m", "pip", "install", "--quiet", "--upgrade", "--target", place, PYRIGHT], env=dict(os.environ))
        if done.returncode == 0:
            done = run_client([python, "-m", "pyright", "--version"], env=env)  # which fetches it
        if done.returncode:
            raise Skip("pyright cannot be had from the package registries")
        with open(os.path.join(place, "whole"), "w"):
            pass
    return env


def no_finding_of_pyright(version):
    python = environment_of_originals()
    done = subprocess.run([python, "-m", "pyright", "-p", ".", "--pythonversion", version], capture_output=True, text=True, env=pyright(python),
                          cwd=os.path.join(ROOT, "python"), timeout=PATIENCE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-800:]


def found_in(said):
    """Lines of typed_wrong.py in which a type checker found something."""
    return {int(line) for line in re.findall(r"typed_wrong\.py:(\d+)", said)}


def calls_that_are_wrong():
    """The lines of typed_wrong.py that must be found."""
    with open(os.path.join(TESTS, "typed_wrong.py"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    begin = lines.index("    return [") + 1
    return set(range(begin + 1, len(lines)))


@check()
def wrong_calls_are_found_by_type_checkers(h):
    """Forty calls that are right and forty that are wrong, by mypy --strict and pyright in its strict mode."""
    python, wrong = environment_of_originals(), calls_that_are_wrong()
    names = ("typed_right.py", "typed_wrong.py")
    mypy = [python, "-m", "mypy", "--strict", "--python-version", "3.9", "--cache-dir", os.path.join(h.disk, "mypy"), "--no-site-packages"]
    said = [subprocess.run([*mypy, os.path.join("tests", name)], capture_output=True, text=True, cwd=os.path.join(ROOT, "python")).stdout
            for name in names]
    assert "Success" in said[0], said[0]
    assert wrong <= found_in(said[1]), (sorted(wrong - found_in(said[1])), said[1][-2000:])
    env, config = pyright(python), os.path.join(h.directory("typed"), "pyrightconfig.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({"include": [os.path.relpath(os.path.join(TESTS, name), os.path.dirname(config)) for name in names], "typeCheckingMode": "strict",
                   "extraPaths": [os.path.join(ROOT, "python")]}, file)
    done = subprocess.run([python, "-m", "pyright", "-p", config, "--pythonversion", "3.9"], capture_output=True, text=True, env=env, timeout=PATIENCE)
    assert "typed_right.py:" not in done.stdout and wrong <= found_in(done.stdout), done.stdout[-3000:] + done.stderr[-400:]
    return f"{len(wrong)} wrong calls found"


@check()
def pyright_finds_nothing_either(h):
    """pyright in its strict mode, for the oldest Python that the package runs on."""
    no_finding_of_pyright("3.9")


@check()
def pyright_finds_nothing_for_the_newest_python(h):
    """The same for the newest."""
    no_finding_of_pyright("3.14")


def source_of(python, package, place):
    """A source distribution, unpacked."""
    done = run_client([python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package.split("==")[0], package, "-d", place],
                      env=dict(os.environ))
    found = [name for name in os.listdir(place) if name.endswith(".tar.gz")]
    if done.returncode and not found:
        raise Skip("no package registry can be reached")
    with tarfile.open(os.path.join(place, found[0])) as archive:
        archive.extractall(place, **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    return os.path.join(place, found[0][:-len(".tar.gz")])


# zipslicer's own tests that our door fails, and why.
ZIPSLICER = {"test_nn_sdict_w_extra_state": "extra state that is not a tensor is left out",
             "test_nn_pickle_raises": "the message that refuses whole modules has our words"}
# An example as it is, but for the network that it would fetch.
EXAMPLE_OF_ZIPSLICER = """import runpy, sys, torch
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer2, self.layer3 = torch.nn.Linear(30, 20), torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.BatchNorm1d(10))
torch.hub.load = lambda *words, **options: Network()
if sys.argv[2] == "door":
    import sluice.zipslicer
    sys.modules["zipslicer"] = sluice.zipslicer
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@check()
def zipslicer_own_programs_run_with_our_door(h):
    """The example of its source distribution prints the same with both; its tests pass, or fail for a reason that is written down."""
    python, place = environment_of_originals(), h.directory("zipslicer")
    folder = source_of(python, "zipslicer==0.8.1", place)
    example = os.path.join(folder, "examples", "example_resnet18.py")
    printed = [subprocess.run([python, "-W", "ignore", "-c", EXAMPLE_OF_ZIPSLICER, example, which], capture_output=True, text=True, cwd=place,
                              env=environment(h), timeout=PATIENCE) for which in ("original", "door")]
    assert [done.returncode for done in printed] == [0, 0], printed
    assert printed[0].stdout == printed[1].stdout and "layer3.0.weight" in printed[0].stdout, printed
    alias = os.path.join(place, "alias")
    os.makedirs(alias)
    with open(os.path.join(alias, "zipslicer.py"), "w") as file:
        file.write('import sys, sluice.zipslicer\nsys.modules["zipslicer"] = sluice.zipslicer\n')
    done = subprocess.run([python, "-W", "ignore", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_synthetic.py"],
                          capture_output=True, text=True, cwd=os.path.join(folder, "tests"), env=environment(h, alias), timeout=PATIENCE)
    failed, passed = set(re.findall(r"^FAILED \S*::(\w+)", done.stdout, re.M)), len(re.findall(r"^PASSED ", done.stdout, re.M))
    assert passed >= 3 and failed == set(ZIPSLICER), done.stdout[-4000:]
    return f"the example; {passed} tests passed, {len(failed)} failed: " + "; ".join(f"{name}: {ZIPSLICER[name]}" for name in sorted(failed))


@check()
def safetensors_own_tests_pass_against_our_door(h):
    """Those of its source distribution: each passes, or fails for a reason that is written down."""
    library = library_of(h)
    if b"sluice_create" not in open(library, "rb").read():
        raise Skip("this libsluice does not write, and nearly every test does")
    python, place = environment_of_originals(), h.directory("upstream")
    folder = os.path.join(source_of(python, "safetensors==0.8.0", place), "bindings", "python")
    alias = os.path.join(place, "alias", "safetensors")
    os.makedirs(alias)
    with open(os.path.join(alias, "__init__.py"), "w") as file:
        file.write(ALIAS)
    done = subprocess.run([python, "-W", "ignore", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider",
                           *(os.path.join("tests", name) for name in UPSTREAM)], capture_output=True, text=True, cwd=folder,
                          env=environment(h, os.path.dirname(alias)), stdin=subprocess.DEVNULL, timeout=PATIENCE)
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S*::(\w+)", done.stdout, re.M))
    passed = len(re.findall(r"^PASSED ", done.stdout, re.M))
    assert passed > 30 and failed <= set(FAILING), done.stdout[-4000:]
    return f"{passed} passed, {len(failed)} failed: " + "; ".join(f"{name}: {FAILING[name]}" for name in sorted(failed))


@check()
def what_is_dropped_is_freed_at_once(h):
    """Each way to read × store × framework, and the doors, with the collector of cycles switched off: one tensor in memory, or a group of them;
    what raises or is left keeps nothing."""
    return run_tests(h, "test_dropped")


@check()
def attach_gives_what_open_gives(h):
    """One program uses a model of the pool, and one that was opened: load, stream, slice, meta, framework."""
    return run_tests(h, "test_attached", env={"SLUICE": h.program})


@check()
def tensors_are_on_their_way_before_they_are_asked_for(h):
    """One after another, in any of three orders, and each rank's parts: few requests, bounded memory, and nothing once the order is left."""
    return run_tests(h, "test_ahead")


@check()
def nothing_is_kept_of_what_was_read(h):
    """Each way to read × a mapped file, one that is read, HTTP and S3 × NumPy and torch × to the end, left, an exception, canceled, out of time:
    no array, no source, no descriptor stays, and no more arrays are alive than each way says."""
    return run_tests(h, "test_kept", env={"SLUICE": h.program})


@check("versitygw")
def a_model_is_read_layer_by_layer_in_the_memory_of_one(h, store):
    """examples/layer_by_layer.py over S3: 192 MiB are read, and memory grows by less than three layers."""
    python, path = environment_of_originals(), os.path.join(h.directory("layers"), "m.safetensors")
    subprocess.run([python, "-W", "ignore", "-c", LAYERS, path], check=True, env=environment(h))
    store.make_bucket("layers")
    with open(path, "rb") as file:
        store.put("layers", "m.safetensors", file.read())
    done = subprocess.run([python, "-W", "ignore", os.path.join(ROOT, "examples", "layer_by_layer.py"), "s3://layers/m.safetensors"],
                          capture_output=True, text=True, env={**environment(h), **store.env()}, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    read, once, grown = map(int, re.search(r"(\d+) MiB read, of which at most (\d+) at once; memory grew by (\d+) MiB", done.stdout).groups())
    assert done.stdout.count(": 2 tensors, norm ") == 12 and (read, once) == (192, 16), done.stdout
    assert grown < 3 * once, done.stdout
    return f"{read} MiB, {once} at once, memory grew by {grown}"


@check("nginx")
def examples_of_python_run(h, nginx):
    """examples/*.py: rows over HTTP fetch no more than they need, eight processes share a file, adapters are added and taken off; what writes,
    where this build does. What needs transformers is in checks_engines.py."""
    python, env, place = environment_of_originals(), environment(h), h.directory("examples")
    model, checkpoint = os.path.join(nginx.root, "m.safetensors"), os.path.join(place, "m.pt")
    subprocess.run([python, "-W", "ignore", "-c", EXAMPLE, model, checkpoint], check=True, env=env)

    def run(name, *words, **more):
        done = subprocess.run([python, "-W", "ignore", os.path.join(ROOT, "examples", name), *words], capture_output=True, text=True,
                              env={**env, **more}, stdin=subprocess.DEVNULL, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    said = run("slice_over_http.py", nginx.http + "/m.safetensors", "a.weight", "100", "228")
    fetched, whole = map(int, re.search(r"(\d+) of (\d+) bytes fetched", said).groups())
    assert "(128, 64) of [4096, 64]" in said and fetched < whole / 20, said
    assert "8 processes" in run("share_between_processes.py", model)
    assert "2 tensors, a.weight first; the largest is b, 4194304 bytes" in run("serve_async.py", nginx.http + "/m.safetensors")
    subprocess.run([python, "-W", "ignore", "-c", ADAPTERS, place], check=True, env=env)
    said = run("lora_adapters.py", os.path.join(place, "base.safetensors"), os.path.join(place, "one/"), os.path.join(place, "two/"))
    assert "one/: 1 of 2 layers adapted" in said and "two/: 2 of 2 layers" in said and "as before without them" in said, said
    if b"sluice_create" not in open(library_of(h), "rb").read():
        return f"{fetched} of {whole} bytes for a slice; this libsluice does not write"
    target = os.path.join(place, "m.safetensors")
    assert f"tensors written to {target}: 1" in run("convert_incrementally.py", checkpoint, target)
    assert "the same answer" in run("serialise_module.py", os.path.join(place, "m.tensors"))
    said = run("encrypted.py", model, os.path.join(place, "e.tensors"), SLUICE_PASSPHRASE="correct horse")
    assert "a.weight: [1, 64] of [4096, 64]" in said and "with another passphrase: " in said, said
    return f"{fetched} of {whole} bytes for a slice"
