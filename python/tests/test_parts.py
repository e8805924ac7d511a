"""Parts of tensors of the pool: which memory they are, whatever the tensor looks like."""
import array
import unittest

import sluice
from sluice._array import Array, Memory

WIDE = (6, 5, 4)


def whole(shape=WIDE, strides=None, dtype="U16", dlpack=(1, 16, 1)):
    """A tensor of numbers that count up, in memory of its own."""
    numbers = array.array("H", range(200))
    memory = Memory()
    memory.numbers = numbers
    return Array(lambda: memory, numbers.buffer_info()[0], 2 * len(numbers), "w", dtype, dlpack, shape, strides, -1, False)


def numbers_of(part):
    return list(array.array("H", part.tobytes()))


class Parts(unittest.TestCase):
    def test_ranks_have_each_row_once(self):
        for dim, size in enumerate(WIDE):
            for of in (1, 2, 3, 5, 7):
                found = [sluice.Part(whole(), dim, rank, of) for rank in range(of)]
                self.assertEqual(sum(part.shape[dim] for part in found), size)
                for part in found:
                    self.assertEqual(part.shape[:dim] + part.shape[dim + 1:], WIDE[:dim] + WIDE[dim + 1:])
                self.assertEqual(sorted(sum(map(numbers_of, found), [])), list(range(120)))

    def test_rows_and_columns(self):
        self.assertEqual(numbers_of(sluice.Part(whole((4, 3)), 0, 1, 2)), [6, 7, 8, 9, 10, 11])
        self.assertEqual(numbers_of(sluice.Part(whole((2, 6)), 1, 2, 3)), [4, 5, 10, 11])
        self.assertEqual(numbers_of(sluice.Part(whole((2, 6)), -1, 2, 3)), [4, 5, 10, 11])

    def test_what_nobody_is_left_for_is_empty(self):
        part = sluice.Part(whole((3, 2)), 0, 3, 4)
        self.assertEqual((part.shape, part.nbytes, part.tobytes()), ((0, 2), 0, b""))
        self.assertEqual(sluice.Part(whole((0, 2)), 0, 0, 2).tobytes(), b"")

    def test_it_is_the_same_memory(self):
        tensor = whole((2, 6))
        part = sluice.Part(tensor, 1, 1, 2)
        self.assertEqual((part._address - tensor._address, part.strides, part.nbytes), (6, (6, 1), 18))

    def test_mistakes_are_told(self):
        for words, kind, phrase in (((2, 0, 2), IndexError, "2 dimensions: no dim 2"), ((0, 2, 2), ValueError, "rank 2 of 2"),
                                    ((0, 0, 0), ValueError, "rank 0 of 0")):
            with self.assertRaisesRegex(kind, phrase):
                sluice.Part(whole((2, 6)), *words)
        with self.assertRaisesRegex(TypeError, "smaller than a byte"):
            sluice.Part(whole((2, 6), dtype="F4", dlpack=(17, 4, 1)), 0, 0, 2)
        with self.assertRaisesRegex(TypeError, "row by row"):
            sluice.Part(whole((2, 6), strides=(1, 2)), 0, 0, 2).tobytes()

    def test_numpy_and_torch_see_the_part(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("no NumPy")
        for shape, strides in ((WIDE, None), ((5, 4), (1, 5))):
            tensor = whole(shape, strides)
            for dim in range(len(shape)):
                for rank in range(3):
                    each = -(-shape[dim] // 3)
                    wanted = tensor.numpy().take(range(min(rank * each, shape[dim]), min((rank + 1) * each, shape[dim])), dim)
                    self.assertTrue(numpy.array_equal(sluice.Part(tensor, dim, rank, 3).numpy(), wanted))

    def test_torch_has_the_part_of_each_type(self):
        """On the same memory, whatever way torch takes the type; what is written is seen by the whole."""
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        for name, dlpack, kind in (("I16", (0, 16, 1), torch.int16), ("BF16", (4, 16, 1), torch.bfloat16), ("BOOL", (6, 8, 1), torch.bool),
                                   ("F32", (2, 32, 1), torch.float32), ("I8", (0, 8, 1), torch.int8)):
            for shape, strides in (((6, 4), None), ((4, 6), (1, 4)), ((2, 3, 4), None)):
                tensor = whole(shape, strides, name, dlpack)
                seen = tensor.torch()
                self.assertEqual((seen.dtype, tuple(seen.shape)), (kind, shape))
                for dim in range(len(shape)):
                    each = -(-shape[dim] // 2)
                    for rank in range(2):
                        mine = sluice.Part(tensor, dim, rank, 2).torch()
                        wanted = seen.narrow(dim, rank * each, min(each, shape[dim] - rank * each))
                        self.assertEqual((mine.dtype, mine.shape, mine.stride(), mine.data_ptr()),
                                         (kind, wanted.shape, wanted.stride(), wanted.data_ptr()), (name, shape, dim))
                        self.assertEqual(mine.tolist(), wanted.tolist())
        self.assertEqual(tuple(sluice.Part(whole((3, 2), dtype="I16", dlpack=(0, 16, 1)), 0, 3, 4).torch().shape), (0, 2))
        numbers = whole((6, 4), dtype="I16", dlpack=(0, 16, 1))
        own = Array(numbers._memory, numbers._address, numbers.nbytes, "w", "I16", (0, 16, 1), (6, 4), None, -1, False, private=True)
        sluice.Part(own, 0, 1, 2).torch()[0, 0] = 7
        self.assertEqual(own.torch()[3, 0].item(), 7)

    def test_it_is_pickled_as_its_tensor_is(self):
        part = sluice.Part(whole((2, 6)), -1, 2, 3)
        self.assertEqual(part.__reduce__(), (sluice.Part, (part._whole, 1, 2, 3)))


if __name__ == "__main__":
    unittest.main()
