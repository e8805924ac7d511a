"""A wheel and a daemon of different versions: each call of the pool says which of the two to update, and nothing hangs."""
import os
import socket
import struct
import tempfile
import threading
import unittest

import sluice

HELLO, ANSWER, ERROR, USAGE = 1, 0x8000, 0x8000, 2
MAGIC, OURS = 0x31504C53, 1
HEAD = struct.Struct("<IHHII")
CALLS = {
    "attach": lambda path: sluice.attach("m", socket=path, timeout=20),
    "list": lambda path: sluice.pool.list(path),
    "stat": lambda path: sluice.pool.stat("m", socket=path),
    "evict": lambda path: sluice.pool.evict("m", socket=path),
}


def packet(kind, serial, body):
    return HEAD.pack(HEAD.size + len(body), kind, 0, serial, 0) + body


def older(serial, _lowest, highest):
    """A daemon that does not speak the wheel's version refuses it."""
    text = f"the client speaks versions {highest} to {highest} of the pool's protocol, this server 2: update the older of the two".encode()
    return packet(ERROR, serial, struct.pack("<II32s", USAGE, len(text), b"protocol") + text)


def newer(serial, _lowest, _highest):
    """A daemon that goes on in its own version."""
    return packet(ANSWER | HELLO, serial, struct.pack("<HHIII", 2, 64, 1, 0, 0))


def longer(serial, lowest, _highest):
    """A daemon whose answers have grown; then it goes."""
    return packet(ANSWER | HELLO, serial, struct.pack("<HHIII", lowest, 64, 1, 0, 0) + b"sluice 9.9.9" + bytes(40))


class Daemon:
    """Answers the first packet of each connection."""

    def __init__(self, folder, answer):
        self.path = os.path.join(folder, "pool.sock")
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(self.path)
        self.listening.listen()
        self.answer, self.hellos = answer, []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            with connection:
                hello = connection.recv(4096)
                if not hello:
                    continue
                _bytes, kind, _reserved, serial, _zero = HEAD.unpack_from(hello)
                magic, lowest, highest = struct.unpack_from("<IHH", hello, HEAD.size)
                self.hellos.append((kind, magic, lowest, highest))
                connection.send(self.answer(serial, lowest, highest))
                connection.recv(4096)  # until it goes

    def close(self):
        self.listening.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listening.close()


class Versions(unittest.TestCase):
    def expect(self, answer, kind, words, code=""):
        for name, call in CALLS.items():
            with self.subTest(call=name), tempfile.TemporaryDirectory() as folder:
                daemon = Daemon(folder, answer)
                try:
                    with self.assertRaises(sluice.SluiceError) as caught:
                        call(daemon.path)
                finally:
                    daemon.close()
                self.assertEqual((caught.exception.kind, caught.exception.code), (kind, code), caught.exception)
                self.assertIn(words, str(caught.exception))
                self.assertEqual(daemon.hellos[0], (HELLO, MAGIC, OURS, OURS))

    def test_a_daemon_that_refuses_the_version_is_quoted(self):
        self.expect(older, "USAGE", "update the older of the two", "protocol")

    def test_a_daemon_that_goes_on_in_another_version_is_left(self):
        self.expect(newer, "USAGE", "the pool speaks version 2 of its protocol, this library version 1: update the older of the two")

    def test_a_greeting_that_has_grown_is_taken(self):
        self.expect(longer, "NET", "the pool's daemon has gone")


if __name__ == "__main__":
    unittest.main()
