"""A checkpoint of torch, changed tensor by tensor and written as safetensors: never more than one tensor in memory.

    python convert_incrementally.py model.pt model.safetensors
"""
import sys

import sluice.zipslicer as zipslicer

if len(sys.argv) != 3:
    sys.exit(__doc__)

source, target = sys.argv[1:]
checkpoint = zipslicer.load(source)
for name in list(checkpoint):
    if name.endswith("_optimizer"):
        del checkpoint[name]
checkpoint.save(target)
print(f"tensors written to {target}: {len(checkpoint)}")
