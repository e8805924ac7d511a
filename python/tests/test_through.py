"""sluice.open where SLUICE_THROUGH names a cache, which flips bits."""
import os
import unittest

import torch
from case import Case, Server, make, needs_writing

import sluice


class Asked(Server):
    """Counts."""

    class Handler(Server.Handler):
        def do_GET(self):
            self.server.asked += 1
            super().do_GET()

    def __init__(self, path):
        self.asked = 0
        super().__init__(path)


class Through(Case):
    def setUp(self):
        super().setUp()
        self.made = {name: torch.arange(2_500_000.0) + at for at, name in enumerate("ab")}

    def tearDown(self):
        os.environ.pop("SLUICE_THROUGH", None)
        super().tearDown()

    def serve(self, path):
        """The store, and a cache that has each byte wrong from the middle on."""
        store, cache = Asked(path), Asked(path)
        half = len(cache.data) // 2
        cache.data = cache.data[:half] + cache.data[half:].translate(bytes(byte ^ 1 for byte in range(256)))
        for server in (store, cache):
            self.addCleanup(server.close)
        os.environ["SLUICE_THROUGH"] = f"http://127.0.0.1:{cache.server_address[1]}"
        return store, cache

    def read_all(self, url, **how):
        with sluice.open(url, **how) as model:
            for name, tensor in self.made.items():
                self.assertEqual(model[name].tobytes(), tensor.numpy().tobytes(), name)

    @needs_writing
    def test_what_decryption_checks_comes_through_it_and_is_right(self):
        path, key = self.at("m.tensors"), sluice.Key(b"k" * 32)
        sluice.save(self.made, path, key=key)
        store, cache = self.serve(path)
        self.read_all(store.url, key=key)
        self.assertGreater(cache.asked, 0)

    def test_what_nothing_checks_comes_from_the_store(self):
        path = self.at("m.safetensors")
        make(self.made, path)
        store, cache = self.serve(path)
        self.read_all(store.url)
        self.assertEqual(cache.asked, 0)


if __name__ == "__main__":
    unittest.main()
