#!/usr/bin/env python3
"""An environment with torch 2 and the packages whose calls the Python doors have, for checks by hand: 6 GB, some minutes, once.

    e2e/torch2.py            makes .cache/python-torch2-…, by package names, and prints its Python

Checks that want it are skipped where it is not there.
"""
import hashlib
import os
import subprocess
import sys

PACKAGES = (
    "torch==2.15.0", "numpy", "ml_dtypes", "safetensors==0.8.0", "tensorizer==2.12.1", "zipslicer==0.8.1", "transformers<6",
    "moto[s3,server]<5", "fsspec", "pytest<9", "runai-model-streamer==0.17.0", "runai-model-streamer-s3", "fastsafetensors==0.5.0",
)
CACHE = os.environ.get("SLUICE_CACHE") or os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".cache")
PLACE = os.path.join(CACHE, "python-torch2-" + hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12])
PYTHON = os.path.join(PLACE, "bin", "python")
WHOLE = os.path.join(PLACE, "whole")


def there():
    """Was it made, to the end?"""
    return os.path.exists(WHOLE)


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
        return
    if not there():
        subprocess.run([sys.executable, "-m", "venv", "--clear", PLACE], check=True)
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        with open(WHOLE, "w"):
            pass
    print(PYTHON)


if __name__ == "__main__":
    main()
