"""What is kept of what was read: each way to read × place × framework × end, with the collector of cycles switched off. Arrays and sources are
counted by weak references, and descriptors of this process, which the server is not in. It needs NumPy; torch where that is there."""
import asyncio
import concurrent.futures
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import weakref
from unittest import mock

import numpy
from daemon import Daemon, needs_a_daemon

import sluice
from sluice import _ahead, _cancel, _frameworks, _model, _native, _pool, _stream
from sluice._library import library

try:
    import torch
except ImportError:
    torch = None

needs_writing = unittest.skipUnless(hasattr(library, "sluice_create"), "this libsluice does not write")
COUNT, ROWS, NBYTES = 8, 4096, 4096 * 16 * 4
STALLS_AT = 3 * NBYTES  # behind what opening reads, and some tensors
GROUP = NBYTES
NEVER = {"readers": {"stallSeconds": 3600, "hedge": "off"}}
FRAMEWORKS = ("numpy", "torch") if torch else ("numpy",)
LONG = 1000  # rounds of a few rows; others have a few


class Enough(Exception):
    """Of a callback."""


class Alive:
    """What there is of arrays that were read into, memory of the library's, and what reads."""

    def __init__(self):
        self.bytes = self.peak = 0
        self.lock = threading.RLock()  # a finalizer may come while it is held
        self.others = weakref.WeakSet()
        self.arrays = 0

    def add(self, thing, nbytes):
        with self.lock:
            self.bytes, self.arrays = self.bytes + nbytes, self.arrays + 1
            self.peak = max(self.peak, self.bytes)
        weakref.finalize(thing, self.drop, nbytes)

    def drop(self, nbytes):
        with self.lock:
            self.bytes, self.arrays = self.bytes - nbytes, self.arrays - 1

    def watch(self, test):
        """Until the test's end."""
        room, alive = _frameworks.room, self

        def counted(framework, dtype, shape, device):
            found = room(framework, dtype, shape, device)
            array = found.result()
            alive.add(array, array.nbytes if framework == "numpy" else array.numel() * array.element_size())
            return found

        self.replace(test, _frameworks, "room", counted)
        for kind, nbytes in ((_native.Held, lambda held: held.nbytes), (_native.Source, None), (_cancel.Cancel, None), (_stream.Stream, None),
                             (_native.Calls, None), (_model.OpenTensor, None), (_pool._Mapped, None)):
            self.replace(test, kind, "__init__", self.counting(kind.__init__, nbytes))

    def counting(self, begin, nbytes):
        def begun(this, *words, **options):
            begin(this, *words, **options)
            if nbytes:
                self.add(this, nbytes(this))
            else:
                self.others.add(this)

        return begun

    @staticmethod
    def replace(test, owner, name, value):
        before = getattr(owner, name)
        setattr(owner, name, value)
        test.addCleanup(setattr, owner, name, before)

    def left(self):
        return self.arrays, sorted(type(other).__name__ for other in self.others)


def waiting(uri):
    """No other try where nothing comes."""
    return NEVER if "/stalls/" in uri else None


# ---- ways to read: (uri, framework, options) -> arrays, which the caller drops ----------------------


def opened(uri, framework, progress, timeout):
    with sluice.open(uri, framework=framework, spec=waiting(uri), progress=progress, timeout=timeout) as model:
        yield model.metadata()


def load(uri, framework, progress, timeout):
    found = sluice.load(uri, framework=framework, spec=waiting(uri), progress=progress, timeout=timeout)
    while found:
        yield found.popitem()[1]


def stream(uri, framework, progress, timeout):
    for _, array in sluice.stream(uri, framework=framework, spec=waiting(uri), progress=progress, timeout=timeout, group_bytes=GROUP):
        yield array
        del array


def get(uri, framework, progress, timeout):
    with sluice.open(uri, framework=framework, spec=waiting(uri), progress=progress, timeout=timeout) as model:
        for name in model:
            yield model[name]


def bare(uri, framework, progress, timeout):
    with sluice.open(uri, spec=waiting(uri), progress=progress, timeout=timeout) as model:
        for name in model:
            yield getattr(model[name], framework)()


def part(uri, framework, progress, timeout):
    with sluice.open(uri, framework=framework, spec=waiting(uri), progress=progress, timeout=timeout) as model:
        for name in model:
            yield model.slice(name)[ROWS // 2:]


def safetensors_door(uri, framework, progress, timeout):
    from sluice.safetensors import safe_open

    with safe_open(uri, framework="pt" if framework == "torch" else "np") as file:
        for name in list(file.keys()):
            yield file.get_tensor(name)


def tensorizer_door(uri, framework, progress, timeout):
    from sluice.tensorizer import TensorDeserializer

    with TensorDeserializer(uri, device="cpu", lazy_load=True) as file:
        for name in list(file.keys()):
            yield file[name]


def zipslicer_door(uri, framework, progress, timeout):
    from sluice import zipslicer

    file = zipslicer.load(uri)
    try:
        for name in list(file):
            yield file[name]
    finally:
        file.close()


def into_module(uri, framework, progress, timeout):
    module = torch.nn.ParameterDict({f"t{number}": torch.empty(ROWS, 16, device="meta") for number in range(COUNT)})
    sluice.load_into_module(module, uri, spec=waiting(uri), progress=progress, timeout=timeout)
    yield from module.values()


async def aload(uri, framework, progress, timeout):
    found = await sluice.aload(uri, framework=framework, spec=waiting(uri), progress=progress, timeout=timeout)
    while found:
        yield found.popitem()[1]


async def astream(uri, framework, progress, timeout):
    arriving = sluice.astream(uri, framework=framework, spec=waiting(uri), progress=progress, timeout=timeout, group_bytes=GROUP)
    try:
        async for _, array in arriving:
            yield array
            del array
    finally:
        await arriving.aclose()


# What each has at once, its caller's one included, in tensors, and what it needs; of .tensors and torch's files each is read at once.
ALL = COUNT + 1
WAYS = {
    opened: (0, None), load: (ALL, None), stream: (4, None), get: (4, None), bare: (2, None), part: (1, None), aload: (ALL, None),
    astream: (4, None), safetensors_door: (4, None), tensorizer_door: (ALL, "torch"), zipslicer_door: (4, "torch"),
    into_module: (ALL, "torch"),
}


def most_of(way):
    """Of the pool nothing: it is not memory of this process."""
    return WAYS.get(way, (0, None))[0]


HAVE_CALLBACKS = (opened, load, stream, get, bare, part, aload, astream, into_module)


# ---- ends ------------------------------------------------------------------------------------------


def rows_of(way):
    for framework in FRAMEWORKS:
        if WAYS[way][1] in (None, framework):
            yield framework


def take(arrays, most=None):
    """So many of them."""
    try:
        for array in itertools.islice(arrays, most):
            del array
    finally:
        arrays.close()


async def atake(arrays, most=None):
    try:
        async for array in arrays:
            del array
            if most:
                break
    finally:
        await arrays.aclose()


class Kept(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="sluice-test-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        made = {f"t{number}": numpy.full((ROWS, 16), number, numpy.float32) for number in range(COUNT)}
        for name in ("m.safetensors", "m.tensors"):
            sluice.save(made, os.path.join(cls.folder, name))
        cls.server = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "serving.py"), cls.folder], stdout=subprocess.PIPE,
                                      text=True)
        cls.addClassCleanup(cls.end_server)
        cls.at = f"127.0.0.1:{cls.server.stdout.readline().strip()}"
        cls.places = {"mapped": os.path.join(cls.folder, "m.safetensors"), "read": os.path.join(cls.folder, "m.tensors"),
                      "HTTP": f"http://{cls.at}/m.safetensors", "S3": "s3://bucket/m.safetensors"}
        cls.stalls = {"HTTP": f"http://{cls.at}/stalls/{STALLS_AT}/m.safetensors"}
        cls.loop = asyncio.new_event_loop()
        cls.addClassCleanup(cls.loop.close)
        cls.loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        cls.addClassCleanup(cls.loop.run_until_complete, cls.loop.shutdown_default_executor())
        cls.others = concurrent.futures.ThreadPoolExecutor(1)
        cls.addClassCleanup(cls.others.shutdown)
        for pool in (None, cls.others):
            cls.loop.run_until_complete(cls.loop.run_in_executor(pool, int))  # whose threads stay

    @classmethod
    def end_server(cls):
        cls.server.kill()
        cls.server.wait()
        cls.server.stdout.close()

    def setUp(self):
        store = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "x", "AWS_ENDPOINT_URL": f"http://{self.at}"}
        for name, value in store.items():
            self.addCleanup(os.environ.update if name in os.environ else os.environ.pop, *([{name: os.environ[name]}] if name in os.environ else [name]))
            os.environ[name] = value
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        ahead = mock.patch.multiple(_ahead, AHEAD_BYTES=GROUP, FIRST_BYTES=GROUP)
        ahead.start()
        self.addCleanup(ahead.stop)
        self.alive = Alive()
        self.alive.watch(self)

    def descriptors(self):
        return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}"))

    def mappings(self):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return sum(self.folder in line for line in maps)

    def assertNothingKept(self, what, most, once, rounds=3):
        once()  # what is imported, and made once
        self.assertEqual(self.alive.left(), (0, []), what)
        before = len(self.descriptors())
        self.alive.peak = 0
        for _ in range(rounds):
            once()
        self.assertEqual(self.alive.left(), (0, []), what)
        self.assertEqual((len(self.descriptors()), self.mappings()), (before, 0), what)
        self.assertLessEqual(self.alive.peak, most * NBYTES, what)

    def run_it(self, way, uri, framework, most=None, progress=None, timeout=None):
        made = way(uri, framework, progress, timeout)
        if hasattr(made, "__anext__"):
            self.awaited(atake(made, most))
        else:
            take(made, most)

    def awaited(self, work):
        """A thread of the loop's drops a call after it has told what came of it, and before it takes the next."""
        said = self.loop.run_until_complete(self.told(work))
        self.loop.run_until_complete(self.loop.run_in_executor(None, int))
        if said == "Enough":
            raise Enough
        if said:
            raise sluice.SluiceError("as it was told", said)

    @staticmethod
    async def told(work):
        """The kind of its error: an exception that leaves the loop is in a cycle of the loop's own."""
        try:
            await work
        except Enough:
            return "Enough"
        except sluice.SluiceError as error:
            return error.kind
        return None

    def rows(self, *ways):
        for way in ways or WAYS:
            for framework, (place, uri) in itertools.product(rows_of(way), self.places.items()):
                yield way, framework, place, uri, f"{way.__name__}, {framework}, {place}"

    def test_to_the_end(self):
        for way, framework, _, uri, what in self.rows():
            self.assertNothingKept(what, most_of(way), lambda: self.run_it(way, uri, framework))

    def test_left_after_the_first(self):
        for way, framework, _, uri, what in self.rows():
            self.assertNothingKept(what, most_of(way), lambda: self.run_it(way, uri, framework, most=1))

    def test_an_exception_in_a_callback(self):
        def raising(done, total):
            raise Enough

        for way, framework, _, uri, what in self.rows(*HAVE_CALLBACKS):
            def once():
                try:
                    self.run_it(way, uri, framework, progress=raising)
                except Enough:
                    pass

            self.assertNothingKept(what, WAYS[way][0], once)

    def test_an_exception_of_who_takes(self):
        for way, framework, _, uri, what in self.rows():
            def once():
                made = way(uri, framework, None, None)
                try:
                    if hasattr(made, "__anext__"):
                        self.awaited(self.afail(made))
                    else:
                        self.fail_with(made)
                except Enough:
                    pass

            self.assertNothingKept(what, most_of(way), once)

    def fail_with(self, made):
        try:
            for _ in made:
                raise Enough
        finally:
            made.close()

    async def afail(self, made):
        try:
            async for _ in made:
                raise Enough
        finally:
            await made.aclose()

    def canceled(self, way, uri, framework):
        """Once its answer has stopped."""
        cancel = _cancel.Cancel()

        def stop():
            self.server.stdout.readline()
            cancel.cancel()

        thread = threading.Thread(target=stop)
        thread.start()
        try:
            _cancel.under(cancel, take, way(uri, framework, None, None))
        except sluice.SluiceError as error:
            self.assertEqual(error.kind, "CANCELED")
        else:
            raise AssertionError("it was not canceled")
        finally:
            thread.join()

    async def task_canceled(self, way, uri, framework):
        task = asyncio.ensure_future(atake(way(uri, framework, None, None)))
        await asyncio.get_running_loop().run_in_executor(self.others, self.server.stdout.readline)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return
        raise AssertionError("it was not canceled")

    def test_canceled_while_nothing_comes(self):
        for way in (load, stream, get, bare, part, aload, astream, into_module):
            for framework in rows_of(way):
                def once():
                    if way in (aload, astream):
                        self.awaited(self.task_canceled(way, self.stalls["HTTP"], framework))
                    else:
                        thread = threading.Thread(target=self.canceled, args=(way, self.stalls["HTTP"], framework))
                        thread.start()
                        thread.join()

                self.assertNothingKept(f"{way.__name__}, {framework}", WAYS[way][0], once)

    def test_out_of_time(self):
        for way in (opened, load, stream, aload, astream, into_module):
            for framework, uri in itertools.product(rows_of(way), (*self.places.values(), self.stalls["HTTP"])):
                def once():
                    try:
                        self.run_it(way, uri, framework, timeout=0.05 if "stalls" in uri else 1e-3)
                    except sluice.SluiceError as error:
                        self.assertEqual(error.kind, "TIMEOUT")

                self.assertNothingKept(f"{way.__name__}, {framework}, {uri}", WAYS[way][0], once)

    def test_a_thousand_rounds(self):
        for way, place, most in ((stream, "HTTP", 1), (get, "read", None), (load, "mapped", None)):
            self.assertNothingKept((way, place), WAYS[way][0], lambda: self.run_it(way, self.places[place], FRAMEWORKS[-1], most), LONG)


@needs_a_daemon
class Attached(Kept):
    """The same of a model of the pool: its leases, their descriptors and mappings."""

    test_an_exception_in_a_callback = test_canceled_while_nothing_comes = test_a_thousand_rounds = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.daemon = Daemon(os.path.join(cls.folder, "m.safetensors"))
        cls.addClassCleanup(cls.daemon.end)
        with sluice.attach("m", socket=cls.daemon.socket, timeout=600) as model:
            model.wait()

    def attached(self, uri, framework, progress, timeout):
        with sluice.attach("m", socket=self.daemon.socket, framework=framework, timeout=timeout) as model:
            yield from model.values()

    def asked(self, uri, framework, progress, timeout):
        with sluice.attach("m", socket=self.daemon.socket, timeout=timeout) as model:
            for _, tensor in model.stream():
                yield getattr(tensor, framework)()

    def rows(self, *ways):
        for way, framework in itertools.product((self.attached, self.asked), FRAMEWORKS):
            yield way, framework, "pool", "", f"{way.__name__}, {framework}"

    def assertNothingKept(self, what, most, once, rounds=100):
        super().assertNothingKept(what, most, once, rounds)
        with open("/proc/self/maps", encoding="utf-8") as maps:
            self.assertNotIn("memfd:sluice", maps.read(), what)

    def test_out_of_time(self):
        for way, framework, _, uri, what in self.rows():
            def once():
                try:
                    self.run_it(way, uri, framework, timeout=1e-3)
                except TimeoutError:
                    pass

            self.assertNothingKept(what, 0, once)


if __name__ == "__main__":
    unittest.main()
