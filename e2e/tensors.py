"""Run by the Python that has the reference package: `tensors.py FILE …` prints {name: [dtype, shape, sha256]} as JSON."""
import hashlib
import json
import sys

from safetensors import safe_open

NAMES = {"float32": "F32", "int64": "I64", "uint8": "U8", "float16": "F16", "int32": "I32"}
found = {}
for path in sys.argv[1:]:
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():
            tensor = file.get_tensor(name)
            found[name] = [NAMES[str(tensor.dtype)], list(tensor.shape), hashlib.sha256(tensor.tobytes()).hexdigest()]
json.dump(found, sys.stdout)
