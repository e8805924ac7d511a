"""Tensors that are asked for one after another are on their way before they are asked for; in bounded memory, and only as long as the order
is kept."""
import gc
import os
import threading
import unittest
import weakref
from unittest import mock

import numpy
import torch
from case import Case, Server, make
from test_kept import Alive

import sluice
from sluice import _ahead, _parts
from sluice.safetensors import safe_open

COUNT, ITEMS = 300, 1000
NBYTES = 4 * ITEMS


def value(name):
    return float(name.rpartition(".")[2])


def living(threads):
    return sum(thread.is_alive() for thread in threads)


class Case(Case):
    def serve(self, tensors):
        make(tensors, self.at("m.safetensors"))
        server = Server(self.at("m.safetensors"))
        self.addCleanup(server.close)
        return server.url

    def awaited(self, model):
        """The stream of what is read ahead, once it has read all that it may before more is taken."""
        stream = model._in_order._ahead._stream
        with stream._changed:
            stream._changed.wait_for(lambda: stream._ended or (len(stream._left) == 2 and len(stream._ready) >= sum(stream._left)))
        return stream


class Ahead(Case):
    def setUp(self):
        super().setUp()
        self.url = self.serve({f"layer.{number}": torch.full((ITEMS,), float(number)) for number in range(COUNT)})

    def test_what_comes_next_is_there_before_it_is_asked_for(self):
        for framework in ("numpy", "torch"):
            with sluice.open(self.url, framework=framework) as model:
                names = model.offset_keys()[-6:]
                for name in names[:2]:
                    self.assertEqual(model[name][3], value(name))
                self.assertTrue(self.awaited(model)._ended)
                before = model.requests
                for name in names[2:]:
                    self.assertEqual(model[name][3], value(name))
                self.assertEqual(model.requests, before)

    def test_each_order_takes_few_requests(self):
        orders = {"items": lambda model: model.items(), "values": lambda model: zip(list(model), model.values()),
                  "as they lie": lambda model: ((name, model[name]) for name in model.offset_keys()),
                  "sorted": lambda model: ((name, model.get_tensor(name)) for name in sorted(model)),
                  "one by one": lambda model: ((name, model.load([name])[name]) for name in model)}
        for what, order in orders.items():
            with self.subTest(order=what), sluice.open(self.url, framework="numpy") as model:
                found = dict(order(model))
                self.assertEqual({name: array[7] for name, array in found.items()}, {name: value(name) for name in found})
                self.assertEqual(len(found), COUNT)
                self.assertLess(model.requests, COUNT / 3)
        with safe_open(self.url, framework="np") as file:
            self.assertEqual([file.get_tensor(name)[0] for name in file.keys()], [value(name) for name in file.keys()])
            self.assertLess(file._inner.model.requests, COUNT / 3)

    def test_one_alone_is_one_request_and_nothing_more(self):
        for picked in ((-9,), (-9, -30), (-9, -10), (-9, -5, -1)):
            with self.subTest(picked=picked), sluice.open(self.url, framework="numpy") as model:
                names = model.offset_keys()
                requests, fetched = model.requests, model.bytes_fetched
                for at in picked:
                    self.assertEqual(model[names[at]][3], value(names[at]))
                self.assertEqual((model.requests, model.bytes_fetched), (requests + len(picked), fetched + len(picked) * NBYTES))
                self.assertIsNone(model._in_order._ahead)

    def test_groups_are_large_from_the_start(self):
        """Small ones would be fetched one after another, each a round trip."""
        jobs = [_ahead.Job(at, 100 << 10, None, None) for at in range(3000)]
        sizes = [sum(job.nbytes for job in group) for group in _ahead._groups(jobs)]
        self.assertEqual([size >> 20 for size in sizes], [15, 63, 63, 63, 63, 21])
        with sluice.open(self.url, framework="numpy") as model:
            before, many = model.requests, {name: array[0] for name, array in model.items()}
            self.assertEqual(many, {name: value(name) for name in many})
            self.assertLess(model.requests - before, 6)

    def by_hand(self, first, second):
        """A model of which two tensors were read, so that those behind them are read in groups of eight; first(jobs, done) and
        second(jobs, done) run before the first two groups are. And the groups that were begun."""
        begun, lock, read = [], threading.Lock(), sluice.Model.read_jobs

        def reading(model, jobs, done, progress):
            with lock:
                begun.append(jobs)
                which = len(begun)
            if which <= 2:
                (first, second)[which - 1](jobs, done)
            return read(model, jobs, done, progress)

        self.enterContext_(mock.patch.multiple(_ahead, AHEAD_BYTES=8 * NBYTES, FIRST_BYTES=8 * NBYTES))
        self.enterContext_(mock.patch.object(sluice.Model, "read_jobs", reading))
        model = self.enterContext_(sluice.open(self.url, framework="numpy"))
        for name in model.offset_keys()[:2]:
            model[name]
        return model, begun

    def enterContext_(self, context):
        """As of Python 3.11."""
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()

    def test_who_asked_for_two_in_order_may_want_no_third(self):
        model, begun = self.by_hand(lambda jobs, done: None, lambda jobs, done: None)
        stream = model._in_order._ahead._stream
        with stream._changed:
            stream._changed.wait_for(lambda: len(stream._ready) == 8)
        self.assertEqual(len(begun), 1)
        self.assertEqual(model[model.offset_keys()[2]][3], value(model.offset_keys()[2]))
        self.awaited(model)
        self.assertEqual(len(begun), 2)

    def test_two_groups_are_fetched_at_a_time(self):
        both, met = threading.Event(), []
        model, begun = self.by_hand(lambda jobs, done: (done(0, numpy.full(ITEMS, 7.0)), met.append(both.wait(60))), lambda jobs, done: both.set())
        self.assertEqual([model[name][5] for name in model.offset_keys()[2:]], [7.0] + [value(name) for name in model.offset_keys()[3:]])
        self.assertEqual(met, [True])

    def test_where_one_group_fails_the_other_waits_for_nobody(self):
        def fails(jobs, done):
            raise OSError("the wire")

        for which in range(2):
            with self.subTest(fails=which):
                model, begun = self.by_hand(*((fails, lambda jobs, done: None) if which == 0 else (lambda jobs, done: None, fails)))
                self.assertEqual([model[name][5] for name in model.offset_keys()[2:]], [value(name) for name in model.offset_keys()[2:]])

    def test_memory_is_bounded_and_given_back_when_the_order_is_left(self):
        alive = Alive()
        alive.watch(self)
        with mock.patch.multiple(_ahead, AHEAD_BYTES=4 * NBYTES, FIRST_BYTES=NBYTES), sluice.open(self.url, framework="numpy") as model:
            names = model.offset_keys()
            for name in names[:20]:
                self.assertEqual(model[name][3], value(name))
            self.awaited(model)
            self.assertGreater(alive.bytes, 0)
            self.assertLessEqual(alive.peak, (1 + 2 * 4) * NBYTES)
            threads = model._in_order._ahead._stream._threads
            self.assertEqual(model[names[90]][3], value(names[90]))
            self.assertEqual((alive.bytes, model._in_order._ahead, living(threads)), (0, None, 0))
            for name in names[91:95]:
                self.assertEqual(model[name][3], value(name))
            threads = model._in_order._ahead._stream._threads
        self.assertEqual((alive.bytes, living(threads)), (0, 0))

    def test_who_drops_a_model_ends_what_is_on_its_way(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        model = sluice.open(self.url, framework="torch")
        for name in list(model)[:4]:
            model[name]
        threads, source = model._in_order._ahead._stream._threads, weakref.ref(model._source)
        del model
        self.assertEqual((living(threads), source()), (0, None))

    def test_the_same_one_again_and_any_order_are_right(self):
        with sluice.open(self.url, framework="numpy") as model:
            names = model.offset_keys()
            for at in (0, 1, 2, 2, 3, 3, 4, 9, 8, 7, 8, 9, 10, 299, 298, 297, 5, 6, 7, 8, 0):
                self.assertEqual(model[names[at]][9], value(names[at]))

    def test_what_fails_ahead_is_read_when_it_is_asked_for(self):
        def failing(self, jobs, done, progress):
            raise OSError("the wire")

        with mock.patch.object(sluice.Model, "read_jobs", failing), sluice.open(self.url, framework="numpy") as model:
            self.assertEqual([array[0] for array in model.values()], [value(name) for name in model])

    def test_who_has_a_limit_of_time_waits_for_nobody_else(self):
        with sluice.open(self.url, framework="numpy") as model:
            names = model.offset_keys()
            for name in names[:4]:
                model[name]
            with mock.patch.object(_ahead.Ahead, "take", side_effect=AssertionError("it may wait for longer")):
                self.assertEqual(model.load(names[4], timeout=600)[names[4]][0], value(names[4]))
                with self.assertRaises(AssertionError):
                    model[names[4]]

    def test_threads_get_their_own(self):
        wrong = []
        with sluice.open(self.url, framework="numpy") as model:
            def work(step):
                for name in list(model)[::step]:
                    if model[name][5] != value(name):
                        wrong.append(name)

            threads = [threading.Thread(target=work, args=(step,)) for step in (1, 1, 2, 3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])

    def test_a_forked_process_reads_on(self):
        with sluice.open(self.url, framework="numpy") as model:
            names = list(model)
            for name in names[:5]:
                model[name]
            child = os.fork()
            if not child:
                os._exit(0 if [model[name][0] for name in names[5:9]] == [value(name) for name in names[5:9]] else 3)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual([model[name][0] for name in names[5:9]], [value(name) for name in names[5:9]])

    def test_local_files_are_not_read_ahead(self):
        with sluice.open(self.at("m.safetensors"), framework="numpy") as model:
            self.assertEqual([array[0] for array in model.values()], [value(name) for name in model])
            self.assertIsNone(model._in_order)


class Ranks(Case):
    ROWS, LAYERS = 1 << 10, 12

    def setUp(self):
        super().setUp()
        tensors = {}
        for layer in range(self.LAYERS):
            for at, kind in enumerate(("down", "qkv")):
                tensors[f"layers.{layer}.{kind}"] = torch.arange(self.ROWS * 300.0).reshape(self.ROWS, 300) + 2 * layer + at
        self.made, self.url = tensors, self.serve(tensors)

    def parts(self, take):
        """What a rank takes: right, and how many requests it took."""
        with sluice.open(self.url, framework="torch") as model:
            for name, tensor in _parts.weights(model):
                for dim, start, length in take(name):
                    part, want = tensor.narrow(dim, start, length), self.made[name].narrow(dim, start, length)
                    self.assertTrue(torch.equal(part + 0, want), name)
            return model.requests

    def test_a_rank_reads_of_each_layer_what_it_took_of_the_first(self):
        foreseen = []
        take = _ahead.Foreseen.take

        def counted(self, entry, taken):
            found = take(self, entry, taken)
            foreseen.append(found is not _ahead.MISSING)
            return found

        with mock.patch.object(_ahead.Foreseen, "take", counted):
            self.parts(lambda name: [(1, 0, 150)] if "down" in name else [(0, 0, 64), (0, 512, 64)])
        self.assertEqual(foreseen, [False] * 3 + [True] * (3 * (self.LAYERS - 1)))

    def test_what_was_not_foreseen_is_right(self):
        self.parts(lambda name: [(0, 8 * int(name.split(".")[1]), 64)] * (1 + int(name.split(".")[1]) % 2))
        self.parts(lambda name: [] if "down" in name else [(0, 0, 512)])


if __name__ == "__main__":
    unittest.main()
