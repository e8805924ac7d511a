"""Models that other processes open again: multiprocessing's spawned ones, and torch's workers that load data."""
import multiprocessing
import os
import pickle
import unittest

import torch
from case import Case, make, tensors

import sluice

COUNT = 8


def sum_of(model, name):
    """In another process: which one, what it read, and whether what it read is its own."""
    tensor = model[name]
    tensor = tensor if isinstance(tensor, torch.Tensor) else tensor.torch()
    total = float(tensor.sum())
    tensor.fill_(0)
    return os.getpid(), total, list(model)


def error_of(pickled):
    """What a process says that is given a model of another version."""
    try:
        pickle.loads(pickled)
    except sluice.SluiceError as error:
        return error.kind, error.code
    return None


class Rows(torch.utils.data.Dataset):
    """Rows of a tensor, read by whichever worker is asked."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return os.getpid(), self.model.slice("rows")[index]


class Spawned(Case):
    def setUp(self):
        super().setUp()
        self.made = {**tensors(), "rows": torch.arange(COUNT * 16.0).reshape(COUNT, 16)}
        self.path = self.at("m.safetensors")
        make(self.made, self.path)

    def test_a_spawned_process_opens_the_model_again(self):
        """The same version, in memory of its own; another one is an error."""
        wanted = float(self.made["rows"].sum())
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for framework in (None, "torch"):
                with sluice.open(self.path, framework=framework) as model:
                    process, total, names = pool.apply(sum_of, (model, "rows"))
                    self.assertNotEqual(process, os.getpid())
                    self.assertEqual((total, names), (wanted, list(model)))
                    left = model["rows"] if framework else model["rows"].torch()
                    self.assertEqual(float(left.sum()), wanted)
                    pickled = pickle.dumps(model)
            make({name: tensor for name, tensor in self.made.items() if name != "empty"}, self.path)
            self.assertEqual(pool.apply(error_of, (pickled,)), ("INTEGRITY", "changed"))

    def test_spawned_workers_of_a_data_loader_read_rows(self):
        with sluice.open(self.path, framework="torch") as model:
            loader = torch.utils.data.DataLoader(Rows(model), batch_size=2, num_workers=2, multiprocessing_context="spawn")
            batches = list(loader)
        self.assertEqual(torch.cat([rows for _, rows in batches]).tolist(), self.made["rows"].tolist())
        workers = {int(process) for processes, _ in batches for process in processes}
        self.assertEqual(len(workers), 2)
        self.assertNotIn(os.getpid(), workers)


if __name__ == "__main__":
    unittest.main()
