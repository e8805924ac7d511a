"""Tensors that are read straight onto a GPU: the fake driver's, whose memory can be looked at as any, lent by a torch that says it has one."""
import asyncio
import contextlib
import ctypes
import os
import pickle
import threading
import unittest
import warnings
from ctypes import byref, c_int, c_uint64, c_void_p
from unittest import mock

import torch
from case import Case, bits, make, tensors

import sluice

SIZE = 8 << 20
SECOND = "GPU-fb020910-171e-252c-333a-41484f565d64"  # of the fake driver's GPUs
FAKE = "FAKE_CUDA_DEVICES" in os.environ
EMPTY, TO = torch.empty, torch.Tensor.to


class Prop(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int), ("id", c_int), ("win32", c_void_p), ("flags", ctypes.c_uint8 * 8)]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", c_int), ("id", c_int), ("flags", c_int)]


def memory_of(number):
    """Where SIZE bytes of a GPU are."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, handle, address = c_void_p(), c_uint64(), c_uint64()
    for done in (
        cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(byref(context), number), cuda.cuCtxSetCurrent(context),
        cuda.cuMemCreate(byref(handle), c_uint64(SIZE), byref(Prop(1, 1, 1, number)), c_uint64(0)),
        cuda.cuMemAddressReserve(byref(address), c_uint64(SIZE), c_uint64(0), c_uint64(0), c_uint64(0)),
        cuda.cuMemMap(address, c_uint64(SIZE), c_uint64(0), handle, c_uint64(0)),
        cuda.cuMemSetAccess(address, c_uint64(SIZE), byref(Access(1, number, 3)), c_uint64(1)),
    ):
        assert done == 0, done
    return address.value


class Torch:
    """A torch with GPUs: it lends memory of the fake driver's, or, without that, of the host."""

    def __init__(self):
        self.addresses, self.begin, self.used, self.awaited, self.moved = {}, {}, 0, [], 0

    def empty(self, *shape, dtype=None, device="cpu"):
        if not str(device).startswith("cuda") or shape == (0,) or not FAKE:
            return EMPTY(*shape, dtype=dtype, device="cpu")
        tensor = EMPTY(*shape, dtype=dtype)
        number, count = int(str(device)[5:] or 0), tensor.numel() * tensor.element_size()
        if not count:
            return tensor
        if number not in self.addresses:
            self.addresses[number] = memory_of(number)
        address = self.addresses[number] + self.used
        self.used += -(-count // 256) * 256
        ctypes.memset(address, 0xee, count)
        return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)

    def has(self, tensor, number=0):
        return 0 <= tensor.data_ptr() - self.addresses[number] < SIZE

    def to(self, tensor, where, *more):
        if not str(where).startswith("cuda"):
            return TO(tensor, where, *more)
        self.moved += 1
        return tensor.clone()

    def current_stream(self, device):
        return mock.Mock(synchronize=lambda: self.awaited.append(str(device)))


@contextlib.contextmanager
def with_gpus():
    fake = Torch()
    with mock.patch.multiple(torch.cuda, is_available=lambda: True, current_device=lambda: 1, current_stream=fake.current_stream), \
            mock.patch.object(torch, "empty", fake.empty), mock.patch.object(torch.Tensor, "to", lambda *words: fake.to(*words)):
        yield fake


class Read(Case):
    def setUp(self):
        super().setUp()
        self.made, self.path = tensors(), self.at("m.safetensors")
        make(self.made, self.path)

    @unittest.skipUnless(FAKE, "the fake driver is not there")
    def test_tensors_are_read_into_memory_that_torch_lends(self):
        with with_gpus() as gpus:
            found = sluice.load(self.path, device="cuda:0")
            self.assertSame(found, {name: self.made[name] for name in found})
            self.assertEqual(set(found), set(self.made))
            for name, tensor in found.items():
                self.assertTrue(not tensor.numel() or gpus.has(tensor), name)
            self.assertEqual((gpus.moved, gpus.awaited), (0, ["cuda:0"]))
            with sluice.open(self.path, framework="torch", device="cuda") as model:
                rows = model.slice("wide")[1:3, ::2]
                self.assertTrue(gpus.has(rows, 1), "the current device is the second one")
                self.assertEqual(rows.tolist(), self.made["wide"][1:3, ::2].tolist())
                self.assertEqual(model["int16"].tolist(), self.made["int16"].tolist())
            streamed = dict(sluice.stream(self.path, device="cuda:1"))
            self.assertSame(streamed, {name: self.made[name] for name in streamed})
            self.assertTrue(gpus.has(streamed["wide"], 1))
            self.assertEqual(gpus.moved, 0)

    @unittest.skipUnless(FAKE, "the fake driver is not there")
    def test_other_threads_use_the_gpu_and_the_stream_of_who_asked(self):
        """Both are a thread's own in torch: others have the first GPU and its default stream."""
        here, awaited = threading.local(), []

        def current_stream(_=None):
            found = getattr(here, "found", (0, "default"))
            return mock.Mock(found=found, synchronize=lambda: awaited.append(found))

        @contextlib.contextmanager
        def within(stream):
            here.found = stream.found
            yield
            del here.found

        def current_device():
            return current_stream().found[0]

        with with_gpus() as gpus, mock.patch.multiple(torch.cuda, is_initialized=lambda: True, current_device=current_device,
                                                      current_stream=current_stream, stream=within):
            here.found = (1, "own")
            streamed = dict(sluice.stream(self.path, device="cuda", group_bytes=1))
            loaded = asyncio.run(sluice.aload(self.path, device="cuda"))
        for found in (streamed, loaded):
            self.assertTrue(gpus.has(found["wide"], 1))
            self.assertSame(found, {name: self.made[name] for name in found})
        self.assertEqual(set(awaited), {(1, "own")})

    @unittest.skipUnless(FAKE, "the fake driver is not there")
    def test_a_gpu_is_named_by_its_uuid_too(self):
        with with_gpus() as gpus:
            found = sluice.load(self.path, device=SECOND)
            self.assertSame(found, {name: self.made[name] for name in found})
            self.assertTrue(gpus.has(found["wide"], 1))
            with sluice.open(self.path, framework="torch", device=SECOND.lower().replace("gpu", "MIG")) as model:
                self.assertEqual(model.device, "cuda:1")
                with pickle.loads(pickle.dumps(model)) as again:
                    self.assertEqual(again.device, "cuda:1")
            with sluice.open(self.path) as model:
                model["wide"].copy_to(found["wide"].data_ptr(), SECOND)
            with self.assertRaisesRegex(sluice.SluiceError, "there is no 'GPU-00000000-.*' among the 2 GPUs"):
                sluice.open(self.path, framework="torch", device="GPU-00000000" + SECOND[12:])
            with self.assertRaisesRegex(sluice.SluiceError, "'GPU-1' does not name a GPU"):
                sluice.load(self.path, device="GPU-1")

    @unittest.skipUnless(FAKE, "the fake driver is not there")
    def test_hashes_are_checked_on_the_way(self):
        path = self.at("m.tensors")
        sluice.save(self.made, path)
        wrong = sluice.open(path).offset_keys()[-1]
        with open(path, "r+b") as file:
            data = file.read()
            where = data.rindex(bits(self.made[wrong]))
            file.seek(where)
            file.write(bytes([data[where] ^ 1]))
        with with_gpus() as gpus, sluice.open(path, framework="torch", device="cuda:0") as model:
            self.assertEqual(bits(model["wide"]), bits(self.made["wide"]))
            with self.assertRaises(sluice.SluiceError) as found:
                model[wrong]
            self.assertEqual((found.exception.kind, gpus.moved), ("INTEGRITY", 0))

    @unittest.skipIf(FAKE, "a driver is there")
    def test_without_a_driver_tensors_go_through_the_host_and_it_is_said(self):
        with with_gpus() as gpus:
            with self.assertWarnsRegex(RuntimeWarning, "tensors go to cuda:0 through memory of the host: .*driver"):
                found = sluice.load(self.path, device="cuda:0")
            self.assertSame(found, {name: self.made[name] for name in found})
            self.assertGreater(gpus.moved, 0)
            with sluice.open(self.path, framework="torch", device="cuda:0") as model, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.assertEqual(model.slice("wide")[0].tolist(), self.made["wide"][0].tolist())

    @unittest.skipIf(torch.cuda.is_available(), "this torch has a GPU")
    def test_without_a_gpu_it_is_said_what_to_do(self):
        with sluice.open(self.path, framework="torch", device="cuda:0") as model:
            for read in (lambda: model["wide"], lambda: model.slice("wide")[0], model.load):
                with self.assertRaisesRegex((AssertionError, RuntimeError), 'tensors cannot be on \'cuda:0\'.* open the model with device="cpu"'):
                    read()


if __name__ == "__main__":
    unittest.main()
