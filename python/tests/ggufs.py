"""GGUF files of one tensor and any keys, piece by piece."""
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def laid(kind, *value):
    """(type, value), or (ARRAY, type of the elements, elements), which are such tuples where they are arrays."""
    if kind == ARRAY:
        element, found = value
        each = (laid(element, *(one if element == ARRAY else (one,))) for one in found)
        return struct.pack("<IQ", element, len(found)) + b"".join(each)
    return text(value[0]) if kind == TEXT else struct.pack("<" + FORMS[kind], value[0])


def gguf(path, keys):
    """{key: (type, value)}; the tensor is "w", 16 zeros."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys))
    for key, value in keys.items():
        head += text(key) + struct.pack("<I", value[0]) + laid(*value)
    head += text("w") + struct.pack("<IQIQ", 1, 16, 0, 0)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % 32 + 64))
