"""Some rows of a tensor of a model that lies on a web server: only they are fetched.

    python slice_over_http.py https://host/model.safetensors wte.weight 0 128
"""
import sys

import sluice

if len(sys.argv) != 5:
    sys.exit(__doc__)

uri, name, first, last = sys.argv[1:]
with sluice.open(uri, framework="numpy") as model:
    rows = model.slice(name)[int(first):int(last)]
    print(f"{name}: {rows.shape} of {list(model.meta(name).shape)}, {rows.sum():.6g}")
    print(f"{model.bytes_fetched} of {model.nbytes} bytes fetched, {model.requests} requests")
