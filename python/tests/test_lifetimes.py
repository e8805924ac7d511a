"""What outlives what: tensors, models, threads, processes."""
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import unittest

import torch
from case import Case, Server, make, needs_writing, tensors

import sluice


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mappings(path=""):
    """Of a file, or all."""
    with open("/proc/self/maps") as file:
        return sum(path in line for line in file)


class Lifetimes(Case):
    def setUp(self):
        super().setUp()
        self.made, self.path = tensors(), self.at("m.safetensors")
        make(self.made, self.path)

    def test_arrays_outlive_their_model(self):
        model = sluice.open(self.path, framework="torch")
        found = {name: model[name] for name in self.made}
        loose = sluice.open(self.path)["wide"].torch()
        view = sluice.open(self.path)["wide"].memoryview()
        model.close()
        del model
        gc.collect()
        self.assertSame(found, self.made)
        self.assertEqual(loose.tolist(), self.made["wide"].tolist())
        self.assertEqual(len(bytes(view)), 96)

    def test_ten_thousand_opens_leave_nothing(self):
        def some(count):
            for _ in range(count):
                with sluice.open(self.path, framework="torch") as model:
                    model["wide"], model.slice("wide")[1:, ::2]

        some(20)
        gc.collect()
        before = descriptors(), mappings()
        some(10000)
        gc.collect()
        self.assertLessEqual(descriptors(), before[0])
        self.assertEqual(mappings(self.path), 0)
        self.assertLessEqual(mappings(), before[1] + 1000, "allocators keep some")

    def test_cycles_are_collected(self):
        gc.collect()
        before = descriptors()
        for _ in range(50):
            model = sluice.open(self.path)
            model.me, model.kept = model, [model["wide"], model]
        del model
        gc.collect()
        self.assertLessEqual(descriptors(), before)

    def test_threads_share_a_model(self):
        wrong = []
        with sluice.open(self.path, framework="torch") as model:
            def work():
                for _ in range(50):
                    if model["wide"].tolist() != self.made["wide"].tolist() or model.slice("wide")[2].tolist() != [12, 13, 14, 15, 16, 17]:
                        wrong.append(1)

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])

    def test_a_model_that_is_closed_while_others_read_ends_after_them(self):
        model = sluice.open(self.path, framework="torch")
        ended = []

        def work():
            try:
                while True:
                    model.slice("wide")[0]
            except ValueError as error:
                ended.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        model.close()
        for thread in threads:
            thread.join(60)
        self.assertEqual(ended, ["the model is closed"] * 4)

    def end_of(self, program, path=None):
        command = [sys.executable, "-X", "faulthandler", "-c", program, path or self.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                out, err = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # faulthandler says where its threads are
                out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        return out

    def test_tensors_outlive_the_interpreter(self):
        self.end_of("""
import sys, torch, sluice
torch.kept = sluice.open(sys.argv[1])["wide"].torch()
torch.model = sluice.open(sys.argv[1], framework="torch")
torch.tensor_of_it = torch.model["wide"]
net = torch.nn.Module()
net.weight, net.me = torch.nn.Parameter(torch.tensor_of_it), [net]
torch.net = net
torch.arriving = sluice.stream(sys.argv[1], group_bytes=1)
next(torch.arriving)
""")

    def test_a_stream_under_way_ends_with_the_interpreter(self):
        many = self.at("many.safetensors")
        make({f"t{number}": torch.arange(64.0) for number in range(400)}, many)
        for _ in range(3):
            self.end_of("""
import sys, torch, sluice
torch.arriving = sluice.stream(sys.argv[1], group_bytes=1)
next(torch.arriving)
""", many)

    def test_a_fork_may_read_and_end(self):
        self.assertEqual(self.end_of("""
import os, sys, sluice
model = sluice.open(sys.argv[1], framework="torch")
kept = model["wide"]
child = os.fork()
if not child:
    again = sluice.open(sys.argv[1], framework="torch")["wide"]
    os._exit(0 if again.tolist() == kept.tolist() else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(model["wide"].sum().item())
"""), "276.0\n")

    def test_a_forked_process_leaves_its_parents_stream_alone(self):
        many = self.at("many.safetensors")
        make({f"t{number}": torch.arange(64.0) for number in range(400)}, many)
        with contextlib.closing(Server(many)) as server:
            self.assertEqual(self.end_of("""
import os, sys, sluice
stream = sluice.stream(sys.argv[1], framework="torch", group_bytes=1024)
first = next(stream)
child = os.fork()
if not child:
    try:
        next(stream)
    except sluice.SluiceError as error:
        print(error.kind, error.code, flush=True)
    stream.close()
    sys.exit(7)  # and whatever an interpreter does then
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, 1 + sum(1 for _ in stream))
""", server.url), "USAGE forked\n7 400\n")

    def test_a_forked_process_that_drops_a_stream_ends(self):
        many = self.at("many.safetensors")
        make({f"t{number}": torch.arange(64.0) for number in range(400)}, many)
        self.assertEqual(self.end_of("""
import os, sys, sluice
stream = sluice.stream(sys.argv[1], framework="torch", group_bytes=1024)
next(stream)
children = []
for _ in range(20):
    child = os.fork()
    if not child:
        del stream
        sys.exit(0)
    children.append(child)
print({os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}, 1 + sum(1 for _ in stream))
""", many), "{0} 400\n")

    def test_a_forked_process_opens_again_what_its_parent_has_open(self):
        self.assertEqual(self.end_of("""
import os, sys, sluice
model = sluice.open(sys.argv[1], framework="torch")
lazy = sluice.open(sys.argv[1])["wide"]
want = model["wide"].tolist()
with model._source._lock, lazy._lock:  # as if other threads were inside
    child = os.fork()
if not child:
    same = model["wide"].tolist() == lazy.torch().tolist() == want and model.slice("wide")[1].tolist() == want[1]
    model.close()
    sys.exit(0 if same else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), model["wide"].tolist() == want)
"""), "0 True\n")

    def test_a_forked_process_does_not_read_another_version(self):
        self.assertEqual(self.end_of("""
import os, shutil, sys, sluice
model = sluice.open(sys.argv[1], framework="torch")
child = os.fork()
if not child:
    shutil.copyfile(sys.argv[1], sys.argv[1] + ".new")
    os.replace(sys.argv[1] + ".new", sys.argv[1])
    try:
        model["wide"]
    except sluice.SluiceError as error:
        print(error.kind, error.code, flush=True)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""), "INTEGRITY changed\n0\n")

    def test_a_forked_process_may_list_while_its_parent_did(self):
        self.assertEqual(self.end_of("""
import os, sys, threading, sluice
from sluice._native import Source
model, other, inside, goes_on, entries = sluice.open(sys.argv[1]), sluice.open(sys.argv[1]), threading.Event(), threading.Event(), Source.entries
def slow(source):
    inside.set()
    goes_on.wait()
    return entries(source)
Source.entries = slow
threading.Thread(target=list, args=(model,), daemon=True).start()
inside.wait()
child = os.fork()
if not child:
    Source.entries = entries
    print(len(list(other)) == len(list(model)), flush=True)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
goes_on.set()
print(code)
"""), "True\n0\n")

    @needs_writing
    def test_a_forked_process_leaves_its_parents_writers_alone(self):
        self.assertEqual(self.end_of("""
import os, sys, torch, sluice
writer = sluice.Writer(sys.argv[1] + ".out.safetensors")
writer.write("a", torch.ones(3))
child = os.fork()
if not child:
    try:
        writer.write("b", torch.ones(3))
    except ValueError as error:
        print(error, flush=True)
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
writer.finish()
print(sluice.load(sys.argv[1] + ".out.safetensors")["a"].tolist())
"""), "the writer is closed\n0\n[1.0, 1.0, 1.0]\n")

    def test_spawned_workers_open_it_again(self):
        self.assertEqual(self.end_of("""
import multiprocessing, pickle, sys, sluice
model = sluice.open(sys.argv[1], framework="torch")
print(pickle.loads(pickle.dumps(model))["wide"].sum().item())
"""), "276.0\n")

    def test_an_interrupt_leaves_everything_usable(self):
        import _thread

        # A background job of a shell ignores SIGINT, and so do its children: Python would never hear of one.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        model, ended = sluice.open(self.path, framework="torch"), threading.Event()

        def interrupt():  # again and again: Python drops one that comes while a finalizer runs
            while not ended.wait(0.2):
                _thread.interrupt_main()

        interrupter = threading.Thread(target=interrupt)
        with self.assertRaises(KeyboardInterrupt):
            interrupter.start()
            try:
                while True:
                    model.slice("wide")[1]
            finally:
                ended.set()
                interrupter.join()
        self.assertEqual(model["wide"].tolist(), self.made["wide"].tolist())


if __name__ == "__main__":
    unittest.main()
