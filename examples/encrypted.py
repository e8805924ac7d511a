"""Weights that only who knows the passphrase can read: written encrypted, read back, a part of one tensor alone.

    SLUICE_PASSPHRASE=… python encrypted.py model.safetensors model.tensors
"""
import os
import sys

import sluice

if len(sys.argv) != 3:
    sys.exit(__doc__)

source, target = sys.argv[1:]
passphrase = os.environ["SLUICE_PASSPHRASE"]
plain = sluice.load(source)
sluice.save(plain, target, format="tensorizer", key=sluice.Key.from_string(passphrase))

with sluice.open(target, key=passphrase, framework="torch") as model:
    name = next(iter(model))
    assert model.encrypted and model[name].equal(plain[name])
    print(f"{name}: {list(model.slice(name)[:1].shape)} of {list(model.meta(name).shape)}")
try:
    sluice.load(target, key=passphrase + "?")
except sluice.SluiceError as error:
    print(f"with another passphrase: {error}")
