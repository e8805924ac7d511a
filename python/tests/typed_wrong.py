"""Forty calls that are wrong: type checkers find one in each line between the brackets. typed_right.py has their like that are right."""
from typing import Any

import sluice


def wrong(model: sluice.Model, pool: sluice.PoolModel, module: Any, array: Any, key: sluice.Key) -> list[object]:
    """Never run."""
    return [
        sluice.open(),
        sluice.open("m", framework="fortran"),
        sluice.open("m", verify="every"),
        sluice.open("m", verify=True),
        sluice.open("m", meta="none"),
        sluice.open("m", include=3),
        sluice.open("m", timeout="3"),
        sluice.open("m", keys=key),
        sluice.open("m", "cpu"),
        sluice.open("m", spec=3),
        sluice.load(),
        sluice.load("m", nams=["w"]),
        sluice.load("m", names=3),
        sluice.load("m", frame="torch"),
        sluice.load("m", framework="tensorflow"),
        sluice.load("m", verify="yes"),
        sluice.load("m", filter="w"),
        sluice.load("m", key=3),
        sluice.load("m", progress="bar"),
        sluice.load("m", encryption=key),
        sluice.load("m").w,
        sluice.stream("m", group="1"),
        sluice.stream("m", group_bytes="1M"),
        sluice.stream("m", credentials="me"),
        sluice.stream("m", verify="maybe"),
        sluice.save({"w": array}),
        sluice.save([array], "m"),
        sluice.save({"w": array}, "m", keys=key),
        sluice.save({"w": array}, "m", metadata={"epoch": 3}),
        sluice.save({"w": array}, "m", shard_bytes="1G"),
        sluice.load_into_module(module),
        sluice.load_into_module(module, "m", strikt=False),
        sluice.load_into_module(module, "m", verify="x"),
        sluice.attach("m", framework="jaxx"),
        sluice.attach("m", key=3),
        sluice.attach(3),
        model.meta("w").size,
        model.load(framework="torch"),
        model.shard("w", 0, "1", 2),
        pool.load(verify="all"),
        sluice.aload("m", verify="every"),
        sluice.astream("m", nams="w"),
    ]
