#!/usr/bin/env python3
"""The sums of e2e/bench, on results so small that they can be done in the head; needs no server and no program.

    e2e/bench/selftest.py

The last line counts: "N passed, N failed, N skipped".
"""
import os
import sys
import tempfile
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import bar  # noqa: E402
import page  # noqa: E402
import results  # noqa: E402
import trials  # noqa: E402
import workloads  # noqa: E402
from harness import ROOT  # noqa: E402

GB, MIB = 1_000_000_000, 1 << 20


def run(client, number, seconds, cpu, anon=0, other=0.0, code=0, workload="w1", size=2 * GB):
    return {"workload": workload, "bytes": size, "round": number, "client": client, "seconds": seconds, "cpu": cpu, "server_cpu": 0.0,
            "hwm_bytes": 2 * anon, "anon_bytes": anon, "other": other, "code": code}


def canned():
    """The limit at 4, 2 and 4 GB/s; sluice at 2, 2 and 1, disturbed once; a peer at 1 that failed once and needs less memory."""
    return [run("limit", 0, 0.5, 0.4), run("sluice", 0, 1.0, 1.0, 16 * MIB), run("curl", 0, 2.0, 3.0, MIB),
            run("limit", 1, 1.0, 0.8), run("sluice", 1, 1.0, 1.2, 32 * MIB), run("curl", 1, 0.1, 3.0, MIB, code=7),
            run("limit", 2, 0.5, 0.4), run("sluice", 2, 2.0, 9.0, 24 * MIB, other=0.5), run("curl", 2, 2.0, 4.0, MIB)]


def sums_of_a_workload():
    """Best, median, shares, CPU without the disturbed round, memory, failures."""
    table = results.summarise(canned())
    ours, peer = table["sluice"], table["curl"]
    wanted = {"best_gb_s": 2.0, "median_gb_s": 2.0, "worst_gb_s": 1.0, "best_s": 1.0, "median_s": 1.0, "worst_s": 2.0,
              # rounds: 2/4, 2/2, 1/4; best: 2/4
              "share_best": 0.5, "share_median": 0.5, "cpu_best": 0.5, "cpu_median": 0.55, "anon_mib": 32.0, "hwm_mib": 64.0, "runs": 3, "failed": 0}
    for key, value in wanted.items():
        assert abs(ours[key] - value) < 1e-9, (key, ours[key], value)
    assert (peer["runs"], peer["failed"], peer["best_gb_s"], peer["cpu_median"]) == (2, 1, 1.0, 1.75), peer
    assert abs(peer["share_median"] - 0.25) < 1e-9, "of the rounds in which it ran"
    assert results.markdown(table) == (
        "| client | best GB/s | median GB/s | share of the limit, best | median | CPU s/GB, best | median | peak anonymous MiB |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| limit | 4.00 | 4.00 | 1.00 | 1.00 | 0.20 | 0.20 |  |\n"
        "| sluice | 2.00 | 2.00 | 0.50 | 0.50 | 0.50 | 0.55 | 32 |\n"
        "| curl (1 of 3 runs failed) | 1.00 | 1.00 | 0.25 | 0.25 | 1.50 | 1.75 | 1 |\n"), results.markdown(table)


def sums_of_a_small_object():
    """Milliseconds, and CPU in them."""
    rows = [run("sluice", number, seconds, 0.004, MIB, workload="w8http", size=1_000_000) for number, seconds in enumerate((0.010, 0.012, 0.011))]
    assert results.markdown(results.summarise(rows)) == (
        "| client | best ms | median ms | CPU ms | peak anonymous MiB |\n| --- | ---: | ---: | ---: | ---: |\n"
        "| sluice | 10.0 | 11.0 | 4.0 | 1 |\n")


def goals_are_judged():
    """Met and not met at the edge, in both senses; costs and trials; what was not measured is neither."""
    rows = canned()
    rows += [run(client, number, 1.0, cpu, workload="sidecar") for number in range(2) for client, cpu in (("sluice", 1.05), ("sluice_bare", 1.0))]
    summary = {name: results.summarise([row for row in rows if row["workload"] == name]) for name in ("w1", "sidecar")}
    figures = {("stalls", "extra_s"): [0.1, 9.0, 0.3], ("stalls", "wasted"): [0.5, 2.1], ("kills", "wrong"): [0.0]}
    judged = {(row["goal"].workload, row["goal"].figure): row for row in bar.judged(summary, figures)}
    share, cpu = judged["w1", "share"], judged["w1", "cpu"]
    assert (share["best"], share["met"], share["peer"]) == (0.5, False, (0.25, "curl")), share
    assert (cpu["best"], cpu["met"], cpu["peer"]) == (0.5, True, (1.5, "curl")), cpu
    assert judged["sidecar", "cost"]["met"] is True and abs(judged["sidecar", "cost"]["best"] - 5) < 1e-6
    assert judged["stalls", "extra_s"]["best"] == 0.3 and judged["stalls", "extra_s"]["met"], "the middle round"
    assert judged["stalls", "wasted"]["best"] == 2.1 and not judged["stalls", "wasted"]["met"], "the worst round"
    assert judged["kills", "wrong"]["met"] and judged["kills", "beyond"]["met"] is None and judged["w3", "cpu"]["met"] is None
    text = bar.markdown(list(judged.values()))
    assert "| `w1`: 2 GiB over HTTP, new files on tmpfs | of the limit | ≥ 0.62 | 0.50 | 0.50 | 0.25 curl | 0.40 | **not met** |" in text, text
    assert text.endswith(f"4 met, 2 not met, {len(bar.GOALS) - 6} not measured.\n"), text[-60:]


def bare_and_a_tenth_will_do():
    """Where the bar is beyond what a new file costs; where it is not, the bar stands."""
    rows = canned() + [run(name, 0, seconds, cpu, MIB) for name, seconds, cpu in (("bare_1", 1.05, 1.0), ("bare", 2.0, 0.9))]
    judged = {(row["goal"].workload, row["goal"].figure): row for row in bar.judged({"w1": results.summarise(rows)}, {})}
    share, cpu = judged["w1", "share"], judged["w1", "cpu"]
    # bare at its best: 1.905 GB/s of 4, 0.45 s/GB
    assert share["wanted"][1] and abs(share["wanted"][0] - 2 / 1.05 / 4 / 1.1) < 1e-9 and share["met"], share
    assert cpu["wanted"] == (0.55, False) and cpu["met"] and share["peer"] == (0.25, "curl"), (cpu, share)
    assert "| ≥ 0.62, here 0.43 by `bare` | 0.50 |" in bar.markdown(list(judged.values()))


def unfavourable_is_told():
    """A goal that is missed, a peer that needs less, runs that failed."""
    summary = {"w1": results.summarise(canned())}
    lines = page.unfavourable(bar.judged(summary, {}), summary)
    assert lines == ["* `w1` misses the bar: 0.50 of the limit, wanted at least 0.62.", "* `w1`: curl takes less memory (1 beside 32 MiB).",
                     "* `w1`: curl failed in 1 runs."], lines


def results_survive_their_file():
    """What was kept is there again: runs, figures, what it was measured with; a workload replaces itself alone."""
    with tempfile.TemporaryDirectory() as folder:
        program = {"program": "abc", "version": "1"}
        store = results.Results(folder)
        store.facts["machine"] = "a machine"
        store.keep("w1", 3, program, canned(), [])
        store.keep("stalls", 3, program, [], [{"workload": "stalls", "round": 0, "figure": "extra_s", "value": 0.25, "note": "a, \"b\""}])
        again = results.Results(folder)
        assert again.runs == canned() and again.facts["machine"] == "a machine" and again.note("stalls") == 'a, "b"'
        assert again.values() == {("stalls", "extra_s"): [0.25]}
        assert again.has("w1", 3, program) and not again.has("w1", 5, program) and not again.has("w1", 3, {"program": "other"})
        again.keep("w1", 1, program, canned()[:3], [])
        assert len(results.Results(folder).runs) == 3 and results.Results(folder).figures


def drawings_are_well_formed():
    """Every drawing parses, is self-contained, and has a colour for dark pages; the page holds each of them."""
    with tempfile.TemporaryDirectory() as folder:
        store = results.Results(folder)
        store.facts["machine"] = "a machine with <2> & cores"
        store.keep("w1", 3, {"program": "abc", "version": "1"}, canned(), [])
        drawings = page.drawings(store)
        assert set(drawings) == {"w1.svg", "shares.svg"}, set(drawings)
        for name, text in drawings.items():
            assert xml.etree.ElementTree.fromstring(text).tag.endswith("}svg"), name
            assert "prefers-color-scheme:dark" in text and not any(word in text for word in ("<script", "href=", "url(", "@import")), name
            assert f"({name})" in page.markdown(store)


def goals_name_what_exists():
    """Every goal is of a workload or trial that can be run, and none is told twice."""
    known = [*workloads.all_workloads(), *trials.TRIALS]
    assert all(goal.workload in known for goal in bar.GOALS), [goal.workload for goal in bar.GOALS if goal.workload not in known]
    assert len({(goal.workload, goal.figure) for goal in bar.GOALS}) == len(bar.GOALS)
    assert set(trials.TITLES) == set(trials.TRIALS)


def the_page_is_made_of_its_results():
    """docs/benchmarks/results.md and its drawings are what docs/benchmarks/results.csv gives."""
    wrong = page.differences(os.path.join(ROOT, "docs"))
    assert not wrong, f"{', '.join(wrong)}: run e2e/bench/run --out docs/benchmarks --write docs"


TESTS = (sums_of_a_workload, sums_of_a_small_object, goals_are_judged, bare_and_a_tenth_will_do, unfavourable_is_told, results_survive_their_file,
         drawings_are_well_formed, goals_name_what_exists, the_page_is_made_of_its_results)


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
        return 0
    failed = 0
    for test in TESTS:
        try:
            test()
            print(f"ok   {test.__name__}")
        except AssertionError as error:
            failed += 1
            print(f"FAIL {test.__name__}: {error}")
    print(f"{len(TESTS) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
