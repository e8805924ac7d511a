"""One model in the memory of eight processes, once: each maps the same local file, and touches only its own rows.

    python share_between_processes.py model.safetensors
"""
import multiprocessing
import sys

import sluice

if len(sys.argv) != 2:
    sys.exit(__doc__)


def work(model, name, rank, ranks):
    part = model[name][rank::ranks]  # mapped: no hash says that it must be read as a whole
    return rank, float(part.astype("f8").sum())


if __name__ == "__main__":
    ranks = 8
    with sluice.open(sys.argv[1], framework="numpy") as model:
        name = next(iter(model))
        context = multiprocessing.get_context("spawn")  # a model that is pickled is opened again, the same version
        with context.Pool(ranks) as pool:
            sums = pool.starmap(work, [(model, name, rank, ranks) for rank in range(ranks)])
        whole = float(model[name].astype("f8").sum())
    assert abs(sum(part for _, part in sums) - whole) < 1e-6 * max(abs(whole), 1)
    print(f"{name}: {ranks} processes, sum {whole:.6g}")
