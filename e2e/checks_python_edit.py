"""Files that are changed where they lie, as others see them: the originals at each call of an edit that is killed, and a daemon."""
import json
import os
import subprocess

from checks_python_open import environment, environment_of_originals
from checks_serve import Node, model
from harness import check, wait_for

ROOMS = ("lib/edit", "storage/file", "node/pool", "python")
HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = ("m.safetensors", "m.tensors", "m.pt")
PATIENCE = 600
MAKE = """import sys, torch, safetensors.torch
safetensors.torch.save_file({"a": torch.arange(3000.0), "b": torch.arange(12).reshape(3, 4), "c": torch.ones(7).half()}, sys.argv[1])
"""
# What a client that stays sees, for each line on stdin: the sum of a.
CLIENT = """import sys, sluice
model = sluice.attach(sys.argv[2], socket=sys.argv[1])
for line in sys.stdin:
    print(float(model["a"].numpy().sum(dtype="float64")), flush=True)
"""
OLD, NEW = 4498500.0, 1500.0


def killer(h):
    """The environment of a process whose calls can be the last ones."""
    library = os.path.join(h.directory("edit-killer"), "killer.so")
    subprocess.run(["cc", "-shared", "-fPIC", os.path.join(HERE, "edit_killer.c"), "-o", library, "-ldl"], check=True)
    return {**environment(h), "LD_PRELOAD": library}


def run_killer(h, *words):
    done = subprocess.run([environment_of_originals(), "-W", "ignore", os.path.join(HERE, "edit_killer.py"), *words], capture_output=True,
                          text=True, env=killer(h), stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@check()
def whoever_reads_a_file_in_mid_edit_refuses_it(h):
    """Edits are killed at each of their calls: safetensors, torch, tensorizer and zipslicer read the old content, the new one, or refuse the
    file until the next edit has completed it, and never read a mix."""
    said = []
    for kind in KINDS:
        folder = h.fresh("edited")
        os.makedirs(folder)
        for name, count in json.loads(run_killer(h, os.path.join(folder, kind))).items():
            assert min(count.values()) > 0, (name, count)
            said.append(f"{name} {count['refused']} of {sum(count.values())}")
    return "refused: " + ", ".join(said)


class Edited:
    """A daemon that has a file, and clients that stay."""

    def __init__(self, h, name):
        folder = h.directory(name)
        self.h, self.node, self.clients = h, Node(h), []
        self.path, self.socket = os.path.join(folder, "m.safetensors"), os.path.join(self.node.place, "pool.sock")
        subprocess.run([environment_of_originals(), "-W", "ignore", "-c", MAKE, self.path], check=True, env=environment(h))
        self.uri = f"file://{folder}/"
        self.node.configure(f'pool: {{socket: {self.socket}, uriPrefixes: ["{self.uri}"]}}\n' + model("m", self.uri) + "sink: {pool: {}}\n")
        self.node.start()
        self.node.await_state("m")

    def attach(self, name):
        process = subprocess.Popen([environment_of_originals(), "-c", CLIENT, self.socket, name], env=environment(self.h),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        self.h.processes.append(process)
        self.clients.append(process)
        return process

    def tried_again(self, name):
        """What a client sees. For a second after a failure the daemon repeats what failed "a moment ago", without another try."""
        while True:
            client = self.attach(name)
            found = seen(client)
            if found == found:
                return found
            said = client.communicate(timeout=PATIENCE)[1].decode()
            assert "a moment ago: " in said, said

    def end(self):
        for process in self.clients:
            process.communicate(timeout=PATIENCE)
        assert self.node.end() == 0


def seen(process):
    process.stdin.write(b"\n")
    return float(process.stdout.readline() or "nan")


def dated(path):
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_ctime_ns


@check()
def a_daemon_has_one_version_of_an_edited_file_or_the_other(h):
    """While a file is between two contents the daemon goes on with what it has. Once the edit is completed it is another version; a client
    that has the old one keeps it whole."""
    pool = Edited(h, "edited-model")
    before, first = pool.node.model("m")["version"], pool.attach("m")
    assert seen(first) == OLD
    run_killer(h, pool.path, "leave")
    assert seen(pool.attach("m")) == OLD, "what is in memory is not asked for again"
    h.sluice("inspect", "--complete-edit", pool.path).expect(0)
    assert pool.node.ask("POST", "/v1/models/m/load", "")[0] == 202
    wait_for("another version", lambda: pool.node.model("m")["version"] != before)
    pool.node.await_state("m")
    assert [seen(pool.attach("m")), seen(first)] == [NEW, OLD]
    pool.end()


@check()
def a_daemon_changes_no_file_that_a_client_names(h):
    """A file that is between two contents is refused to a client that names it, with what to do, and stays as it is; then it is the new one."""
    pool = Edited(h, "edited-uri")
    uri, first = pool.uri + "m.safetensors", pool.attach("m")
    assert seen(first) == OLD
    run_killer(h, pool.path, "leave")
    before = dated(pool.path)
    said = pool.attach(uri).communicate(timeout=PATIENCE)[1].decode()
    assert "let its owner run 'sluice inspect --complete-edit'" in said, said
    assert dated(pool.path) == before, "somebody wrote to it"
    h.sluice("inspect", pool.path).expect(5)
    assert dated(pool.path) == before, "reading wrote to it"
    h.sluice("inspect", "--complete-edit", pool.path).expect(0)
    assert [pool.tried_again(uri), seen(first)] == [NEW, OLD]
    pool.end()
