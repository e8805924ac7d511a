"""What ends a call that waits for a server which says nothing more: Ctrl-C, tasks, streams that are left, other threads."""
import asyncio
import io
import logging
import signal
import sys
import threading
import types
import unittest
import unittest.mock

import torch
from case import Case, Server, make

import sluice
from sluice import _cancel, _native, _progress, _waits
from sluice._stream import Stream

NEVER = {"readers": {"stallSeconds": 3600, "hedge": "off"}}


class Stalled(Case):
    def setUp(self):
        super().setUp()
        path = self.at("m.safetensors")
        tensors = {"0": torch.zeros(40000), "a": torch.arange(60000.0).reshape(300, 200), "b": torch.ones(50000)}
        make(tensors, path)  # the first lies in what opening brings
        self.server = Server(path)
        self.addCleanup(self.server.close)
        self.url = self.server.url

    def stalled_model(self, **options):
        model = sluice.open(self.url, framework="torch", spec=NEVER, **options)
        self.server.stalls.set()
        return model

    def when_stalled(self, what):
        """what(), on a thread of its own, once an answer has stopped."""
        def run():
            self.server.stalled.wait()
            what()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.addCleanup(thread.join)

    def assertInterrupted(self, call):
        """By the signal that a terminal sends: whatever the main thread waits for."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.server.stalled.clear()
            with self.assertRaises(KeyboardInterrupt):  # an answer to the call before may still stop now
                self.when_stalled(lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
                call()
        finally:
            signal.signal(signal.SIGINT, before)

    def test_an_interrupt_ends_whatever_reads(self):
        model = self.stalled_model()
        calls = (
            lambda: model["a"], lambda: model.slice("a")[::7, ::3], lambda: model.slice("a")[:, 5], lambda: model.slice("a")[2:9],
            lambda: model.shard("a", 1, 1, 2), lambda: model.load(), lambda: list(model.stream()),
            lambda: sluice.OpenTensor(model._source, model.entry("b")).memoryview(),
        )
        for call in calls:
            self.assertInterrupted(call)

    def test_an_interrupt_ends_what_opens_lists_and_copies(self):
        self.server.stalls.set()
        for call in (
            lambda: sluice.open(self.url, spec=NEVER), lambda: sluice.load(self.url, spec=NEVER),
            lambda: list(sluice.stream(self.url, spec=NEVER)), lambda: sluice.pull(self.url, self.at("copy"), spec=NEVER),
        ):
            self.assertInterrupted(call)

    def test_a_stream_that_is_left_ends_what_it_reads(self):
        model = self.stalled_model()
        stream = Stream(model, [model.entries()], None)
        with self.assertRaises(KeyError), stream:
            self.server.stalled.wait()
            raise KeyError("a reason of its own")
        self.assertFalse(stream._threads[0].is_alive())

    def test_another_thread_ends_what_is_read(self):
        model = self.stalled_model()
        for call in (lambda: model["a"], lambda: model.slice("a")[::7, ::3], lambda: list(model.stream())):
            self.when_stalled(model.cancel)
            with self.assertRaises(sluice.SluiceError) as raised:
                call()
            self.assertEqual(raised.exception.kind, "CANCELED")
        self.server.stalls.clear()
        with self.assertRaises(sluice.SluiceError):
            model["a"]
        with sluice.open(self.url, framework="torch") as again:
            self.assertEqual(float(again["b"][3]), 1.0)

    def test_a_task_that_is_canceled_ends_what_it_awaits(self):
        async def canceled(work):
            self.server.stalled.clear()
            task = asyncio.ensure_future(work)
            await asyncio.get_running_loop().run_in_executor(None, self.server.stalled.wait)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        async def each():
            async for _ in sluice.astream(self.url, spec=NEVER):
                pass

        async def left():
            arriving = sluice.astream(self.url, spec=NEVER)
            await arriving.__anext__()

        self.server.stalls.set()
        asyncio.run(canceled(sluice.aopen(self.url, spec=NEVER)))
        asyncio.run(canceled(sluice.aload(self.url, spec=NEVER)))
        asyncio.run(canceled(sluice.apull(self.url, self.at("copy"), spec=NEVER)))
        asyncio.run(canceled(each()))
        asyncio.run(canceled(left()))
        self.assertNotIn("sluice stream", [thread.name for thread in threading.enumerate()])

    def test_a_stream_of_a_loop_may_be_left(self):
        async def some():
            names = []
            arriving = sluice.astream(self.url, group_bytes=1)
            async for name, _ in arriving:
                names.append(name)
                break
            await arriving.aclose()
            return names

        self.assertEqual(len(asyncio.run(some())), 1)
        self.assertNotIn("sluice stream", [thread.name for thread in threading.enumerate()])


class Limited(Case):
    """timeout= is of all that a call waits for: opening, and every read."""

    def setUp(self):
        super().setUp()
        self.path = self.at("m.safetensors")
        make({"a": torch.zeros(1 << 20), "b": torch.ones(1 << 20)}, self.path)
        self.server = Server(self.path)
        self.addCleanup(self.server.close)
        self.server.stalls_at = 4 << 20  # the head is told, the last tensor never
        self.server.stalls.set()

    def calls(self, timeout):
        def each():
            async def all_of():
                return [name async for name, _ in sluice.astream(self.server.url, timeout=timeout, spec=NEVER)]
            return asyncio.run(all_of())

        module = torch.nn.ParameterDict({"a": torch.zeros(1 << 20), "b": torch.zeros(1 << 20)})
        url, model = self.server.url, sluice.open(self.server.url, framework="torch", spec=NEVER)
        self.addCleanup(model.close)
        return (
            lambda: sluice.load(url, timeout=timeout, spec=NEVER),
            lambda: list(sluice.stream(url, timeout=timeout, group_bytes=1, spec=NEVER)),
            lambda: list(sluice.stream([self.path, url], timeout=timeout, group_bytes=1, spec=NEVER)),
            lambda: sluice.load_into_module(module, url, timeout=timeout, spec=NEVER),
            lambda: sluice.load_into_module(module.to("meta"), url, timeout=timeout, spec=NEVER),
            lambda: asyncio.run(sluice.aload(url, timeout=timeout, spec=NEVER)), each,
            lambda: model.load(timeout=timeout), lambda: list(model.stream(timeout=timeout)),
        )

    def test_it_ends_what_reads(self):
        for call in self.calls(0.5):
            with self.assertRaises(sluice.SluiceError) as raised:
                call()
            self.assertEqual(raised.exception.kind, "TIMEOUT")

    def test_every_read_has_what_is_left_of_it(self):
        self.server.stalls.clear()
        given = []

        class Options(_native._structs.ReadOptions):
            def __init__(self, *members, **named):
                super().__init__(*members, **named)
                given.append(self.timeout_ms)

        for call in self.calls(3600):
            with unittest.mock.patch.object(_native._structs, "ReadOptions", Options):
                call()
            self.assertTrue(given and all(0 < ms <= 3600000 for ms in given), given)
            given.clear()

    def test_what_the_caller_does_meanwhile_does_not_count(self):
        self.server.stalls.clear()
        clock = [0.0]
        with unittest.mock.patch.object(_cancel.time, "monotonic", lambda: clock[0]):
            for _ in sluice.stream(self.path, timeout=10, group_bytes=1, verify="off"):
                clock[0] += 1000.0

    def test_a_limit_within_a_limit(self):
        with _cancel.Limit(5).step():
            self.assertLessEqual(_cancel.milliseconds(None), 5000)
            self.assertLessEqual(_cancel.milliseconds(1), 1000)
            with _cancel.Limit(3600).step():
                self.assertLessEqual(_cancel.milliseconds(7200), 5000)
            with _cancel.Limit(None).step():
                self.assertLessEqual(_cancel.milliseconds(None), 5000)
            with _cancel.Limit(0).step():
                self.assertEqual(_cancel.milliseconds(None), 1)
        self.assertEqual(_cancel.milliseconds(None), 0)

    def test_a_timeout_that_is_none_is_refused_and_a_long_one_is_long(self):
        self.assertEqual((_cancel.milliseconds(float("inf")), _cancel.milliseconds(1e12)), (_cancel.LONGEST_MS,) * 2)
        for wrong in (-1, float("nan")):
            for call in (sluice.open, sluice.load, lambda uri, timeout: list(sluice.stream(uri, timeout=timeout))):
                with self.assertRaisesRegex(ValueError, "timeout is seconds"):
                    call(self.path, timeout=wrong)


class Told(Case):
    def setUp(self):
        super().setUp()
        self.path = self.at("m.safetensors")
        make({"a": torch.arange(60000.0).reshape(300, 200), "b": torch.ones(50000)}, self.path)
        self.bytes = 4 * (60000 + 50000)
        self.server = Server(self.path)
        self.addCleanup(self.server.close)

    def assertTold(self, told, total):
        self.assertEqual(told, sorted(told))
        self.assertEqual(told[-1], (total, total))

    def test_whoever_asks_is_told_all_of_it(self):
        module = torch.nn.Module()
        module.a = torch.nn.Parameter(torch.zeros(300, 200))
        module.register_buffer("b", torch.zeros(50000, dtype=torch.float64))
        for uri in (self.path, self.server.url):
            for call in (
                lambda tell: sluice.load(uri, progress=tell), lambda tell: dict(sluice.stream(uri, group_bytes=1, progress=tell)),
                lambda tell: sluice.load_into_module(module, uri, progress=tell),
                lambda tell: asyncio.run(sluice.aload(uri, progress=tell)),
            ):
                told = []
                call(lambda done, total: told.append((done, total)))
                self.assertTold(told, self.bytes)

    def test_opening_is_told(self):
        told = []
        with sluice.open(self.server.url, progress=lambda done, total: told.append((done, total))) as model:
            self.assertEqual(len(model), 2)
        self.assertTrue(told)

        def fail(done, total):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            sluice.open(self.server.url, progress=fail)

    def shown(self, call):
        """What a call wrote to standard error."""
        before, sys.stderr = sys.stderr, io.StringIO()
        try:
            call()
            return sys.stderr.getvalue()
        finally:
            sys.stderr = before

    def test_a_bar_is_ours_where_there_is_no_other(self):
        kept = {name: sys.modules.get(name) for name in ("tqdm", "tqdm.auto")}
        sys.modules.update({name: None for name in kept})
        try:
            for call in (
                lambda: sluice.load(self.path, progress=True), lambda: sluice.pull(self.path, self.at("copy"), progress=True),
                lambda: dict(sluice.stream(self.path, progress=True)),
            ):
                self.assertIn("0.4 of 0.4 MB", self.shown(call))
            self.assertIn(self.server.url, self.shown(lambda: sluice.open(self.server.url, progress=True)))
        finally:
            for name, module in kept.items():
                sys.modules.pop(name)
                if module is not None:
                    sys.modules[name] = module

    def test_a_bar_is_tqdms_where_there_is_one(self):
        bars = []

        class Bar:
            def __init__(self, **options):
                self.options, self.n, self.total, self.closed = options, 0, 0, False
                bars.append(self)

            def update(self, more):
                self.n += more

            def close(self):
                self.closed = True

        kept = {name: sys.modules.get(name) for name in ("tqdm", "tqdm.auto")}
        sys.modules["tqdm"], sys.modules["tqdm.auto"] = types.ModuleType("tqdm"), types.ModuleType("tqdm.auto")
        sys.modules["tqdm.auto"].tqdm = Bar
        try:
            sluice.load(self.path, progress=True)
        finally:
            for name, module in kept.items():
                sys.modules.pop(name)
                if module is not None:
                    sys.modules[name] = module
        self.assertEqual([(bar.n, bar.total, bar.closed) for bar in bars], [(self.bytes, self.bytes, True)])

    def test_a_bar_shows_no_secrets(self):
        for uri, name in (
            ("https://me:word@host/a/b.safetensors?X-Amz-Signature=s", "https://host/a/b.safetensors"),
            ("s3://bucket/a", "s3://bucket/a"), ("/a/b?c@d", "/a/b?c@d"),
        ):
            self.assertEqual(_progress.without_secrets(uri), name)


class _Told(BaseException):
    pass


class _Teller(logging.Handler):
    """Whoever hears of this has heard enough. What other calls of the process wait for is told, too: of those that were just interrupted."""

    def __init__(self, words):
        super().__init__()
        self.words = words

    def emit(self, record):
        self.text = record.getMessage()
        if self.words in self.text:
            raise _Told


class Unreached(Case):
    def test_what_is_waited_for_is_told(self):
        teller, logger = _Teller("cannot connect to '127.0.0.1:1'"), logging.getLogger("sluice")
        logger.addHandler(teller)
        self.addCleanup(logger.removeHandler, teller)
        with self.assertRaises(_Told):
            sluice.open("http://127.0.0.1:1/m.safetensors", framework="torch", spec={"readers": {"unreachableSeconds": 3600}})
        self.assertIn("going on until", teller.text)

    def test_what_was_waited_for_before_is_not_told(self):
        sentences = iter([(7, b"old"), (7, b"old"), (8, b"new"), (8, b"new"), (0, b"")])

        def waits_for(text, _):
            number, text.value = next(sentences)
            return number

        ended = unittest.mock.Mock()
        ended.wait.side_effect = [False, False, False, False, True]
        with unittest.mock.patch.object(_waits, "optional", lambda _: waits_for), self.assertLogs("sluice", "WARNING") as logs:
            _waits.until(ended)
        self.assertEqual([record.getMessage() for record in logs.records], ["new"])


if __name__ == "__main__":
    unittest.main()
