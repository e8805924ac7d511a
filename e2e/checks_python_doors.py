"""tensorizer's own tests against our door, and ours beside the originals with a torch of today; both want e2e/torch2.py's environment."""
import contextlib
import json
import os
import signal
import subprocess
import tarfile

import torch2
from checks_python_open import environment, lifetimes, run_tests
from harness import Skip, check, run_client

ROOMS = ("lib/open", "python")
RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tensorizer_tests.py")
PATIENCE = 1200
CAREFUL = ("test_suppress_weights_only", "test_name_callback", "test_thread_safety", "test_load_with_regular_file")
# tensorizer's own tests that our door fails, and why; docs/python.md leads here.
FAILING = {
    "TestVerification.test_verification_fail": "it replaces tensorizer's own class of hashes, which nothing of ours asks",
    "TestRedis.test_redis_stream": "keys that to_redis() would not write: sluice wants the header's",
    "TestS3.test_download_url": "a private function that presigns: sluice signs its requests",
    "TestS3.test_upload": "a URI that was opened for writing is for TensorSerializer alone",
    **dict.fromkeys((f"TestTorchCompat.{name}" for name in CAREFUL), "within loading() torch.load() is careful: no whole module, unless it is told"),
}


def need_torch2():
    if not torch2.there():
        raise Skip("no environment with torch 2: e2e/torch2.py makes it")


def own_tests(h, folder, package):
    """{test: how it ended}"""
    out = os.path.join(h.directory("tensorizer-tests"), package + ".json")
    with open(out + ".log", "w+") as log:
        process = subprocess.Popen([torch2.PYTHON, "-W", "ignore", RUNNER, folder, package, out], stdout=log, stderr=log, cwd=h.disk,
                                   env=environment(h, os.path.dirname(RUNNER)), stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            status = process.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # servers that a test left
        log.seek(0)
        assert status == 0, log.read()[-4000:]
    with open(out) as file:
        return json.load(file)


def sources(place):
    done = run_client([torch2.PYTHON, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "tensorizer", "tensorizer==2.12.1",
                       "-d", place], env=dict(os.environ))
    found = [name for name in os.listdir(place) if name.endswith(".tar.gz")]
    if done.returncode and not found:
        raise Skip("no package registry can be reached")
    with tarfile.open(os.path.join(place, found[0])) as archive:
        archive.extractall(place)
    return os.path.join(place, found[0][:-len(".tar.gz")], "tests")


@check(late=True)
def tensorizer_own_tests_pass_against_our_door(h):
    """Those of its source distribution, against both: what passes there passes here, or fails for a reason that is written down."""
    need_torch2()
    folder = sources(h.directory("tensorizer"))
    theirs, ours = (own_tests(h, folder, package) for package in ("tensorizer", "sluice.tensorizer"))
    passing = {name for name, how in theirs.items() if how == "passed"}
    failed = {name for name in passing if ours.get(name) != "passed"}
    assert len(passing) > 40, theirs
    assert failed <= set(FAILING), {name: ours.get(name) for name in failed - set(FAILING)}
    return f"{len(passing - failed)} of the {len(passing)} that pass against tensorizer; not {', '.join(sorted(failed))}"


@check()
def doors_answer_as_the_originals_do_with_torch_2(h):
    """The package's own tests beside the originals, with a torch of today; torch_compat among them."""
    need_torch2()
    return run_tests(h, "test_safetensors", "test_tensorizer", "test_tensorizer_more", "test_guarded", "test_zipslicer", "test_doors", "test_beside",
                     "test_counterparts", python=torch2.PYTHON)


@check()
def python_opens_and_writes_with_torch_2(h):
    """Models, slices, types and engines, and what is odd: nested tensors, default devices."""
    need_torch2()
    return run_tests(h, "test_open", "test_looks", "test_odd", "test_engines", "test_types", python=torch2.PYTHON)


@check()
def models_and_tensors_outlive_what_they_may_with_torch_2(h):
    """The interpreter, threads, cycles, interrupts."""
    need_torch2()
    return run_tests(h, *lifetimes(of_forks=False), python=torch2.PYTHON)


@check()
def forked_processes_leave_what_their_parents_have_with_torch_2(h):
    """Children that read, write and end."""
    need_torch2()
    return run_tests(h, *lifetimes(of_forks=True), python=torch2.PYTHON)
