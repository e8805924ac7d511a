"""Many threads in one model, one writer, one tensor: with NumPy alone, so that a Python without a global lock runs it, too."""
import os
import queue
import shutil
import sys
import sysconfig
import tempfile
import threading
import unittest
import weakref

import numpy

import sluice
from sluice import _model, _pool
from sluice._library import library

THREADS = 8
needs_writing = unittest.skipUnless(hasattr(library, "sluice_create"), "this libsluice does not write")


def together(*works):
    """Each in a thread of its own, begun at one moment; what they returned or raised."""
    found, begin = [None] * len(works), threading.Barrier(len(works))

    def run(at):
        begin.wait()
        try:
            found[at] = works[at]()
        except Exception as error:
            found[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@needs_writing
class Threads(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        before = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, before)
        sys.setswitchinterval(1e-5)
        self.made = {f"t{i}": numpy.arange(i, i + 600, dtype=numpy.int32).reshape(20, 30) for i in range(40)}
        self.path = self.at("m.safetensors")
        sluice.save(self.made, self.path)
        self.hashed = self.at("m.tensors")  # which is read, not mapped
        sluice.save(self.made, self.hashed)

    def at(self, name):
        return os.path.join(self.folder, name)

    def right(self, found):
        return sorted(found) == sorted(self.made) and all(numpy.array_equal(found[name], self.made[name]) for name in found)

    def test_the_lock_stays_away(self):
        if not sysconfig.get_config_var("Py_GIL_DISABLED"):
            self.skipTest("this Python has a global lock")
        self.assertFalse(sys._is_gil_enabled())

    def test_one_model_is_read_by_all(self):
        for path in (self.path, self.hashed):
            with sluice.open(path, framework="numpy") as model:
                def work():
                    rows = all(numpy.array_equal(model.slice(name)[::-3, 2], self.made[name][::-3, 2]) for name in list(model)[::5])
                    return rows and self.right(model.load()) and self.right(dict(model.stream(group_bytes=9000)))

                self.assertEqual(together(*[work] * THREADS), [True] * THREADS)

    def test_one_tensor_has_one_memory(self):
        hold, held = _model.hold, []

        def counted(*arguments):
            held.append(hold(*arguments))
            return held[-1]

        self.addCleanup(setattr, _model, "hold", hold)
        _model.hold = counted
        with sluice.open(self.hashed) as model:
            for name in list(model)[:20]:
                held.clear()
                tensor = model[name]
                found = together(*[tensor.numpy] * THREADS)
                del tensor
                self.assertEqual(len(held), 1, "each of the others has an address of memory that nobody keeps")
                self.assertTrue(all(numpy.array_equal(each, self.made[name]) for each in found))

    def test_a_model_is_closed_while_all_read(self):
        for _ in range(10):
            model, began = sluice.open(self.hashed, framework="numpy"), threading.Event()

            def work():
                while True:
                    try:
                        model.load()
                        began.set()
                        model.uri, model.metadata(), model.nbytes
                    except ValueError as error:
                        return str(error)

            def close():
                began.wait()
                model.close()

            self.assertEqual(together(*[work] * 4, close, close), ["the model is closed"] * 4 + [None] * 2)

    def test_progress_of_many_loads_is_told_one_at_a_time(self):
        total = sum(array.nbytes for array in self.made.values())
        for path in (self.path, self.hashed):
            def work():
                inside, told = threading.Lock(), []

                def tell(done, of):
                    self.assertTrue(inside.acquire(blocking=False), "two at once")
                    told.append((done, of))
                    inside.release()

                sluice.load(path, framework="numpy", progress=tell)
                return told[-1]

            self.assertEqual(together(*[work] * THREADS), [(total, total)] * THREADS)

    def test_what_a_callback_raises_ends_its_own_load_alone(self):
        def fails():
            def tell(done, of):
                raise KeyError("enough")

            sluice.load(self.hashed, framework="numpy", progress=tell)

        found = together(*[fails, lambda: self.right(sluice.load(self.hashed, framework="numpy"))] * (THREADS // 2))
        self.assertEqual([repr(each) for each in found], ["KeyError('enough')", "True"] * (THREADS // 2))

    def test_arrays_are_dropped_by_whoever_has_them_last(self):
        def mappings():
            with open("/proc/self/maps") as file:
                return sum(self.folder in line for line in file)

        handed, before = queue.Queue(), mappings()

        def gives():
            with sluice.open(self.path) as model:
                for name in model:
                    handed.put((name, numpy.from_dlpack(model[name])))
                    handed.put((name, model[name].numpy()))
            handed.put(None)

        def takes():
            return all(numpy.array_equal(array, self.made[name]) for name, array in iter(handed.get, None))

        self.assertEqual(together(*[gives, takes] * 4), [None, True] * 4)
        self.assertEqual(mappings(), before)

    def test_one_writer_takes_from_all(self):
        for borrow in (False, True):
            writer, path = sluice.Writer(self.at("new.tensors"), borrow=borrow), self.at("new.tensors")

            def work(names):
                for name in names:
                    writer.write(name, self.made[name].copy())

            names = list(self.made)
            self.assertEqual(together(*(lambda at=at: work(names[at::THREADS]) for at in range(THREADS))), [None] * THREADS)
            self.assertEqual(writer.total_tensor_bytes, sum(array.nbytes for array in self.made.values()))
            ended = together(*[writer.finish] * THREADS)
            self.assertEqual(sorted(map(repr, ended)), sorted(["None"] + ["ValueError('the writer is closed')"] * (THREADS - 1)))
            found = sluice.load(path, framework="numpy")
            self.assertTrue(self.right({name: found[name] for name in self.made}))

    def test_a_writer_that_ends_takes_nothing_more(self):
        for _ in range(10):
            writer = sluice.Writer(self.at("w.tensors"), borrow=True)
            writer.write("first", numpy.zeros(1000))

            def work(at):
                count = 0
                try:
                    while True:
                        writer.write(f"{at} {count}", numpy.full(1000, at))
                        count += 1
                except ValueError:
                    return count

            found = together(*(lambda at=at: work(at) for at in range(4)), writer.finish)
            self.assertIsNone(found[-1])
            loaded = sluice.load(self.at("w.tensors"), framework="numpy")
            self.assertEqual(len(loaded), 1 + sum(found[:-1]))
            self.assertTrue(all((array == (0 if name == "first" else int(name.split()[0]))).all() for name, array in loaded.items()))

    def test_one_editor_takes_from_all(self):
        with sluice.edit(self.path) as changes:
            def work(names):
                for name in names:
                    changes[name] = self.made[name] + 1
                    changes[name + " new"] = self.made[name].copy()

            names = list(self.made)
            self.assertEqual(together(*(lambda at=at: work(names[at::THREADS]) for at in range(THREADS))), [None] * THREADS)
            ended = together(*[changes.commit] * THREADS)
            self.assertEqual(sorted(map(repr, ended)), sorted(["None"] + ["ValueError('the editor is closed')"] * (THREADS - 1)))
        found = sluice.load(self.path, framework="numpy")
        for name, array in self.made.items():
            self.assertTrue(numpy.array_equal(found[name], array + 1) and numpy.array_equal(found[name + " new"], array))

    def test_a_call_keeps_what_another_thread_closes(self):
        lease, mapped = object.__new__(_pool._Lease), _pool.Memory()
        mapped.model, lease._mapped = _pool.c_void_p(5), mapped
        kept, handle = weakref.ref(mapped), lease.handle
        del mapped
        lease.close()
        self.assertEqual((kept() is not None, handle.value), (True, 5))
        del handle
        self.assertIsNone(kept())


if __name__ == "__main__":
    unittest.main()
