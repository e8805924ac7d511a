"""Check sample specs against the JSON schema: schema_check.py SCHEMA. Exits 77 without a validator."""
import copy
import json
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError:
    sys.exit(77)

BASE = {
    "apiVersion": "sluice/v1alpha1",
    "kind": "Model",
    "metadata": {"name": "m"},
    "source": {"uri": "/m/"},
    "sink": {"tmpfs": {"path": "/t"}},
}
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

# What replaces or joins the base, and whether that is a spec.
CASES = [
    ({}, True),
    ({"listen": None, "readers": None, "decrypt": {"keyFile": None}}, True),
    ({"readers": {"connections": "auto", "rangeBytes": "8Mi", "memoryBytes": 67108864, "attempts": "${N}"}}, True),
    ({"source": {"uri": "s3://${BUCKET}/x/", "include": ["*.json"], "s3": {"anonymous": True, "region": "eu"}}}, True),
    ({"verify": {"hashes": False, "sha256": {"a": SHA256}}}, True),
    ({"sink": {"tmpfs": {"path": "/t", "layout": "safetensors", "owner": 1000}}}, True),
    ({"tensors": {"shard": {"rank": 0, "of": 2, "rules": [{"match": "*", "dim": 1}]}, "cast": {"F32": "BF16"}}}, True),
    ({"lisen": "x"}, False),
    ({"kind": "Node"}, False),
    ({"apiVersion": "v1"}, False),
    ({"metadata": {"name": "Bad_Name"}}, False),
    ({"metadata": {}}, False),
    ({"source": {"uri": None}}, False),
    ({"source": {"uri": "/m", "includes": []}}, False),
    ({"source": {"uri": "/m", "include": "x"}}, False),
    ({"readers": {"connections": 0}}, False),
    ({"readers": {"connections": 1025}}, False),
    ({"readers": {"rangeBytes": "8 apples"}}, False),
    ({"verify": {"hashes": "maybe"}}, False),
    ({"verify": {"sha256": {"a": "12"}}}, False),
    ({"sink": {"tmpfs": {"path": "/t", "layout": "gguf"}}}, False),
    ({"tensors": {"shard": {"rules": [{"dim": 1}]}}}, False),
    ({"tensors": ["a"]}, False),
]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    wrong = 0
    for change, good in CASES:
        spec = copy.deepcopy(BASE)
        spec.update(change)
        errors = [error.message for error in validator.iter_errors(spec)]
        if bool(errors) == good:
            print(f"{change}: {'refused: ' + errors[0] if errors else 'accepted'}")
            wrong += 1
    return 1 if wrong else 0


sys.exit(main())
