"""A daemon that is none: whatever it answers, attach() ends with one error and keeps no descriptor."""
import fcntl
import os
import shutil
import socket
import struct
import tempfile
import threading
import unittest

import sluice

HELLO, ATTACH, ANSWER = 1, 2, 0x8000
SHAPE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
PAGE = 4096


def head(kind, serial, nbytes):
    return struct.pack("<IHHII", nbytes, kind | ANSWER, 0, serial, 0)


def welcome(serial, more=0):
    return head(HELLO, serial, 32 + more) + struct.pack("<HHIII", 1, 64, 1, 0, 0)


def attached(serial, index=PAGE, page=PAGE, tensors=1, slabs=1, here=1, more=0):
    return head(ATTACH, serial, 88 + more) + struct.pack("<QQQIIII32x", 1, index, page, tensors, slabs, here, 1)


def memory(nbytes, seals=SHAPE | fcntl.F_SEAL_WRITE):
    fd = os.memfd_create("liar", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def null():
    return os.open("/dev/null", os.O_RDONLY)


# What is answered to the attach, with which descriptors; and the error's kind.
ANSWERS = {
    "nothing": (None, [], "NET"),
    "a byte": (lambda serial: b"x", [], "INTERNAL"),
    "a head alone": (lambda serial: head(ATTACH, serial, 16), [], "INTERNAL"),
    "an answer cut short": (lambda serial: attached(serial)[:-1], [], "INTERNAL"),
    "a length that is not its own": (lambda serial: attached(serial, more=8), [], "INTERNAL"),
    "another's answer": (lambda serial: attached(serial + 1), [], "INTERNAL"),
    "no descriptors": (attached, [], "INTERNAL"),
    "fewer descriptors than it says": (attached, [memory, memory], "INTERNAL"),
    "more descriptors than it says": (attached, [memory] * 9, "INTERNAL"),
    "as many as fit into a packet": (attached, [null] * 253, "INTERNAL"),
    "devices": (attached, [null] * 3, "INTEGRITY"),
    "memory that is not sealed": (attached, [lambda nbytes: memory(nbytes, 0)] * 3, "INTEGRITY"),
    "memory that may be written to": (attached, [lambda nbytes: memory(nbytes, SHAPE)] * 3, "INTEGRITY"),
    "memory that is too short": (lambda serial: attached(serial, index=2 * PAGE), [memory] * 3, "INTEGRITY"),
    "an index as large as no machine": (lambda serial: attached(serial, index=1 << 40), [memory] * 3, "FORMAT"),
    "an empty index": (lambda serial: attached(serial, index=0), [memory] * 3, "INTEGRITY"),
    "an index of zeros": (attached, [memory] * 3, "FORMAT"),
    "more slabs than there may be": (lambda serial: attached(serial, slabs=1 << 31, here=1), [memory] * 3, "INTERNAL"),
    "more tensors than fit": (lambda serial: attached(serial, tensors=(1 << 32) - 1), [memory] * 3, "FORMAT"),
}


class Liar:
    """Answers one client."""

    def __init__(self, folder, greets, answer, fds):
        self.path = os.path.join(folder, "pool.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.path)
        self._socket.listen(1)
        self._script = greets, answer, fds
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        greets, answer, fds = self._script
        client, _ = self._socket.accept()
        with client:
            for say, sent in ((greets, []), (answer, fds)):
                request = client.recv(1 << 16)
                if not request or say is None:
                    return
                given = [make(PAGE) if make is not null else null() for make in sent]
                try:
                    socket.send_fds(client, [say(struct.unpack_from("<I", request, 8)[0])], given)
                except BrokenPipeError:
                    return
                finally:
                    for fd in given:
                        os.close(fd)
            client.recv(1)  # until it goes

    def end(self):
        self._thread.join()
        self._socket.close()
        os.unlink(self.path)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


class Lies(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def check(self, greets, answer, fds, kind, timeout=None):
        before = descriptors()
        liar = Liar(self.folder, greets, answer, fds)
        try:
            with self.assertRaises(sluice.SluiceError) as found:
                sluice.attach("m", socket=liar.path, timeout=timeout)
            self.assertEqual(found.exception.kind, kind, str(found.exception))
            self.assertNotIn("\n", str(found.exception))
            del found
        finally:
            liar.end()
        self.assertEqual(descriptors(), before)

    def test_what_cannot_be_an_answer_to_an_attach_is_refused(self):
        for what, (answer, fds, kind) in ANSWERS.items():
            with self.subTest(what):
                self.check(welcome, answer, fds, kind)

    def test_what_cannot_be_a_greeting_is_refused(self):
        for what, (greets, kind) in {
            "nothing": (None, "NET"), "a byte": (lambda serial: b"x", "INTERNAL"), "cut short": (lambda serial: welcome(serial)[:-1], "INTERNAL"),
            "too long": (lambda serial: welcome(serial, 8), "INTERNAL"), "another's": (lambda serial: welcome(serial + 1), "INTERNAL"),
        }.items():
            with self.subTest(what):
                self.check(greets, None, [], kind)

    def test_silence_ends_with_the_time(self):
        def nothing(serial):
            self.assertTrue(released.wait(600))
            return b"x"

        released = threading.Event()
        before = descriptors()
        liar = Liar(self.folder, welcome, nothing, [])
        with self.assertRaises(sluice.SluiceTimeoutError):
            sluice.attach("m", socket=liar.path, timeout=0.05)
        released.set()
        liar.end()
        self.assertEqual(descriptors(), before)


if __name__ == "__main__":
    unittest.main()
