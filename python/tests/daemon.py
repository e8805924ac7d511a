"""A daemon with a pool of one model, m, for tests that are told by SLUICE which program it is."""
import os
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ.get("SLUICE")
needs_a_daemon = unittest.skipUnless(PROGRAM, "SLUICE does not say which program is the daemon")
SPEC = """apiVersion: sluice/v1alpha1
kind: Node
directory: {place}/node
budgetBytes: 1GiB
listen: 127.0.0.1:0
control: {{socket: {place}/control.sock}}
pool: {{socket: {place}/pool.sock}}
---
apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: m}}
source: {{uri: "file://{model}"}}
sink: {{pool: {{device: host}}}}
"""


class Daemon:
    """Of the model in a file; its socket is there when attach() gets time to wait for it."""

    def __init__(self, model):
        self.place = tempfile.mkdtemp(prefix="sluice-test-", dir="/dev/shm")
        self.socket = os.path.join(self.place, "pool.sock")
        with open(os.path.join(self.place, "node.yaml"), "w", encoding="utf-8") as file:
            file.write(SPEC.format(place=self.place, model=model))
        self.process = subprocess.Popen([PROGRAM, "serve", file.name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)
