"""One unary gRPC call to a unix socket, and the little of protobuf that it takes: as a client that shares no code with sluice.

Messages are lists of (field number, value): bytes, text, a nested list, or a number. HTTP/2 as RFC 9113 has it, headers as
literals of RFC 7541; of the answer's headers nothing is read, so a refusal is an answer without a message.
"""
import socket
import struct

DATA, HEADERS, RESET, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes([number])


def encode(fields):
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
            continue
        value = encode(value) if isinstance(value, list) else value.encode() if isinstance(value, str) else value
        out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def read_varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if not data[at - 1] & 128:
            return number, at


def decode(data):
    """[(field number, number or bytes)]"""
    found, at = [], 0
    while at < len(data):
        key, at = read_varint(data, at)
        value, at = read_varint(data, at)
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        found.append((key >> 3, value))
    return found


def as_map(entries):
    """A map<string, string>, of all values of its field."""
    pairs = [dict(decode(entry)) for entry in entries]
    return {pair.get(1, b"").decode(): pair.get(2, b"").decode() for pair in pairs}


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def take(link, count):
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        assert more, "the connection was closed"
        data += more
    return data


def read_answer(link):
    """The bytes of DATA frames until the stream ends."""
    body = b""
    while True:
        head = take(link, 9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        payload = take(link, size)
        assert kind not in (RESET, GOAWAY), f"frame {kind}: {payload[:80]!r}"
        if kind == SETTINGS and not flags & ACK:
            link.sendall(frame(SETTINGS, ACK, 0))
        if kind == DATA:
            body += payload
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            return body


def call(path, method, fields):
    """The answer's fields, [] where it is empty. AssertionError: a refusal."""
    message = encode(fields)
    headers = b"".join(literal(name, value) for name, value in (
        (":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"),
        ("content-type", "application/grpc"), ("te", "trailers")))
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(60)
        link.connect(path)
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, headers) +
                     frame(DATA, END_STREAM, 1, b"\0" + struct.pack(">I", len(message)) + message))
        body = read_answer(link)
    assert len(body) >= 5, f"{method} was refused"
    return decode(body[5:])
