"""The gate's selection: what a change affects, by scripts/affected, in clones of this checkout."""
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess

from harness import ROOT, Skip, check

ROOMS = ("docs",)


def git(folder, *words):
    return subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True).stdout.strip()


def clone(h):
    """A clone with the scripts of this working tree, and no change."""
    if not os.path.exists(os.path.join(ROOT, ".git")):
        raise Skip("this is not a git checkout")
    folder = h.fresh("clone")
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    git(folder, "checkout", "--quiet", "-B", "work")  # a branch without an upstream, whatever is checked out here
    shutil.copy(os.path.join(ROOT, "scripts", "affected"), os.path.join(folder, "scripts", "affected"))
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=n", "-c", "user.email=e@example.com", "commit", "--quiet", "--allow-empty", "-m", "the same")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    return folder


def affected(folder, *words):
    done = subprocess.run([os.path.join(folder, "scripts", "affected"), *words], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def tests_of(*changed):
    """Names of the tests that a change of these files affects; of everything for none."""
    loader = importlib.machinery.SourceFileLoader("affected", os.path.join(ROOT, "scripts", "affected"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("affected", loader))
    loader.exec_module(module)
    return set(module.Affected(changed or None, "").tests)


def touch(folder, name):
    with open(os.path.join(folder, name), "a") as file:
        file.write("\n")


@check()
def a_change_affects_its_room_and_all_above(h):
    """A change takes the tests of its room and of all rooms that see it, by the rows of CMakeLists.txt, and no other."""
    rows = {"src/node/web/web.c": (("test_web", "test_share"), ("test_gguf", "test_reader", "test_node_held")),
            "src/model/format/gguf.c": (("test_gguf", "test_plan", "test_reader", "test_node", "test_open"), ("test_s3", "test_journal")),
            "src/lib/open/open.c": (("test_open", "test_edit"), ("test_load", "test_api_gpu")),
            "tests/core/test_journal.c": (("test_journal",), ("test_load",)),
            "tests/support/fake_cuda_share.c": (("test_fake_cuda", "test_gpu_ring"), ("test_s3",)),
            "fuzz/corpus/gguf/x": (("fuzz_gguf",), ("fuzz_zip", "test_gguf"))}
    for name, (those, others) in rows.items():
        found = tests_of(name)
        assert found.issuperset(those), f"{name}: {set(those) - found} are missing"
        assert found.isdisjoint(others), f"{name}: {found & set(others)} are too many"
    everything = tests_of()
    for name in ("src/core/base/mem.h", "CMakeLists.txt", "tests/CMakeLists.txt", ".ci/run"):
        found = tests_of(name)
        assert found == everything, f"{name}: {sorted(everything - found)[:5]} are missing"
    assert not tests_of("docs/load.md"), "a page affects tests"


@check()
def what_changed_is_found_or_everything_is(h):
    """Commits and the working tree count from where a branch left its upstream; without a base everything does."""
    folder = clone(h)
    assert "everything counts as changed" in affected(folder), affected(folder)
    touch(folder, "src/node/csi/csi.c")
    assert "rooms touched: node/csi" in affected(folder)[1], affected(folder)
    git(folder, "-c", "user.name=n", "-c", "user.email=e@example.com", "commit", "--quiet", "-am", "one")
    with open(os.path.join(folder, "src/node/web/new.c"), "w") as file:
        file.write("/* new */\n")
    assert "rooms touched: node/csi node/web" in affected(folder)[1], affected(folder)
    assert "rooms touched: node/web" in affected(folder, "--since", "HEAD")[1], affected(folder, "--since", "HEAD")
    git(folder, "update-ref", "-d", "refs/remotes/origin/main")
    assert any(line.startswith("everything counts") for line in affected(folder)), affected(folder)
    done = subprocess.run([os.path.join(folder, "scripts", "affected"), "--since", "nothing"], capture_output=True, text=True)
    assert done.returncode and "names no commit" in done.stderr, done.stderr
