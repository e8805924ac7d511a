"""Forty calls that are right: type checkers find nothing in them. typed_wrong.py has their like that are wrong."""
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import sluice


def right(model: sluice.Model, pool: sluice.PoolModel, module: Any, array: Any, key: sluice.Key) -> list[object]:
    """Never run."""
    sluice.save({"w": array}, "m.tensors", key=key)
    sluice.save({"w": array}, "m.safetensors", metadata={"format": "pt"}, replace=False)
    sluice.save({"w": array}, "m", format="tensorizer", shard_bytes=1 << 30)
    sluice.pull("s3://m/", "there", exclude="*.bin", verify="all")
    return [
        sluice.open("s3://m/x/"),
        sluice.open(Path("m.safetensors"), framework="numpy"),
        sluice.open("m", device="cuda:0", framework="torch", verify="all"),
        sluice.open("m", key=key, include="*.weight", exclude=["a*", "b*"]),
        sluice.open("m", key=b"k" * 32, verify="require", meta="keep"),
        sluice.open("m", spec={"tensors": {"cast": {"F32": "BF16"}}}, timeout=3.5),
        sluice.load("m"),
        sluice.load("m", names="w", dtype="bf16"),
        sluice.load("m", names=["w", "v"], filter=lambda name: name != "w"),
        sluice.load("m", framework="jax", progress=True, timeout=60),
        sluice.load("m", key="a passphrase", verify="off", whole=False),
        sluice.load("m", credentials=sluice.credentials(region="x")),
        sluice.load("m")["w"].sum(),
        sluice.stream("m"),
        sluice.stream(["m", "n"], group_bytes=1 << 20),
        [name.upper() for name, _ in sluice.stream("m", verify="all", meta="zeros")],
        sluice.Writer("m.tensors", borrow=True, timeout=10).total_tensor_bytes + 1,
        sluice.load_into_module(module, "m", strict=False)[0],
        sluice.load_into_module(module, model, dtype="bf16", device="cpu"),
        sluice.attach("m", deposit="k", load=False, writable=True),
        sluice.attach("m", "cuda:0", timeout=None, framework="torch")["w"],
        sluice.ls("s3://m/", include=["*.json"])[0].nbytes + 1,
        sluice.open_file("m", begin=1, end=9).read(),
        sluice.edit("m", copy=True).delete if False else None,
        model.meta("w").shape[0] + 1,
        model.load("w", timeout=3, dtype=None)["w"],
        [name + "x" for name, _ in model.stream(["w"], group_bytes=9)],
        model.slice("w")[0:3, ..., None],
        model.shard("w", dim=0, rank=1, of=2),
        model.framework == pool.framework,
        pool.meta("w").nbytes + model.meta("w").nbytes,
        pool.load(["w"], timeout=3)["w"],
        [name + "x" for name, _ in pool.stream(filter=bool)],
        pool.slice("w")[1:],
        sluice.pool.evict("m") + 1,
        sluice.SluiceError("x").kind + sluice.SluiceError("x").code,
    ]


async def awaited(module: Any) -> list[object]:
    """Never run."""
    arriving: AsyncIterator[tuple[str, Any]] = sluice.astream("m", framework="numpy")
    async with await sluice.aopen("m", framework="torch", verify="all") as model:
        found = await sluice.aload("m", names="w", timeout=3)
        return [[name + "x" async for name, _ in arriving], len(model), found["w"], (await sluice.aload_into_module(module, "m"))[0]]
