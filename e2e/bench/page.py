"""docs/benchmarks/results.md from a folder of results, and the drawings beside it."""
import os
import shutil

import bar
import draw
import results
import trials
import workloads

FOLDER = "benchmarks"  # below docs/: results.csv, figures.csv, facts.json, drawings, and
PAGE = "results.md"
HEAD = """# Results of the benchmarks

`e2e/bench/run --write docs` writes this page. [How to read it](../benchmarks.md#how-to-read-it).

"""
FILES = ("results.csv", "figures.csv", "facts.json")


def title_of(name):
    known = workloads.all_workloads()
    return known[name].title if name in known else trials.TITLES.get(name, name)


def ordered(found):
    """Workloads as the bar lists them, then those that it does not know."""
    names = [name for name in dict.fromkeys(goal.workload for goal in bar.GOALS) if name in found]
    return names + [name for name in found if name not in names]


def measured_text(facts):
    """When, with which version, how often; more than one of each only if they differ."""
    rows = list(facts["workloads"].values())

    def several(key):
        values = sorted({str(row[key]) for row in rows})
        return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"
    programs = len({row["program"] for row in rows})
    text = f"{several('rounds')} rounds each, sluice {several('version')}, {several('measured')}"
    return text + (f"; {programs} builds of it" if programs > 1 else "")


def behind(table):
    """What a peer does better than sluice in one workload, as sentences without their subject."""
    ours = table.get("sluice")
    peers = {name: row for name, row in table.items() if bar.is_peer(name)}
    if not ours or not peers:
        return []
    found = []
    for key, text, unit, digits in (("best_s", "ends earlier at its best", "s", 3), ("median_s", "ends earlier in the median", "s", 3),
                                    ("cpu_median", "takes less CPU in the median", "s/GB", 2), ("anon_mib", "takes less memory", "MiB", 0)):
        name, row = min(peers.items(), key=lambda item: item[1][key])
        if round(row[key], digits) < round(ours[key], digits):
            found.append(f"{name} {text} ({row[key]:.{digits}f} beside {ours[key]:.{digits}f} {unit})")
    return found


def unfavourable(judged, summary):
    lines = []
    for row in judged:
        if row["met"] is False:
            goal, number = row["goal"], bar.digits(row["goal"])
            lines.append(f"* `{goal.workload}` misses the bar: {row['best']:.{number}f} {bar.UNITS[goal.figure]}, "
                         f"wanted {'at least' if goal.sense == bar.LEAST else 'at most'} {row['wanted'][0]:.{number}f}.")
    for name in ordered(summary):
        found = behind(summary[name])
        if found:
            lines.append(f"* `{name}`: {'; '.join(found)}.")
        failed = [f"{client} failed in {row['failed']} runs" for client, row in summary[name].items() if row["failed"]]
        lines += [f"* `{name}`: {'; '.join(failed)}."] if failed else []
    return lines or ["* Nothing that was measured."]


def drawings(store):
    """{file name: text}"""
    summary = store.summary()
    found = {f"{name}.svg": draw.workload(f"{name}: {title_of(name)}", table, results.is_small(table)) for name, table in summary.items()}
    found["shares.svg"] = draw.shares(bar.judged(summary, store.values()))
    return found


def trial_lines(store):
    lines = ["| trial | | |", "| --- | --- | --- |"]
    names = ordered(dict.fromkeys(row["workload"] for row in store.figures))
    for name in names:
        values = {figure: found for (trial, figure), found in store.values().items() if trial == name}
        text = ", ".join(f"{figure} {' '.join(f'{value:.2f}' for value in found)}" for figure, found in values.items())
        lines.append(f"| `{name}`: {title_of(name)} | {text} | {store.note(name)} |")
    return lines if names else []


def markdown(store, pictures=True):
    """The page below its head; without pictures, for a terminal."""
    summary = store.summary()
    judged = bar.judged(summary, store.values())
    lines = [f"{store.facts['machine']}.", "", f"{measured_text(store.facts)}.", "", "## The bar", "", bar.markdown(judged)]
    if pictures:
        lines += ["![shares of the limit](shares.svg)", ""]
    for name in ordered(summary):
        lines += [f"## {name}: {title_of(name)}", ""]
        if pictures:
            lines += [f"![rate, CPU and memory of each client]({name}.svg)", ""]
        lines.append(results.markdown(summary[name]))
    if store.figures:
        lines += ["## Trials", "", *trial_lines(store), ""]
    lines += ["## What is unfavourable", "", *unfavourable(judged, summary)]
    return "\n".join(lines) + "\n"


def write(store, docs):
    """Results and drawings into docs/benchmarks/, and the page."""
    folder = os.path.join(docs, FOLDER)
    os.makedirs(folder, exist_ok=True)
    for name in FILES:
        if os.path.exists(store.path(name)) and os.path.abspath(store.folder) != os.path.abspath(folder):
            shutil.copyfile(store.path(name), os.path.join(folder, name))
    made = {**drawings(store), PAGE: HEAD + markdown(store)}
    for name in os.listdir(folder):
        if name.endswith(".svg") and name not in made:
            os.unlink(os.path.join(folder, name))
    for name, text in made.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)


def differences(docs):
    """Files in docs/benchmarks/ that are not what write() would make of it."""
    folder = os.path.join(docs, FOLDER)
    store = results.Results(folder)
    found = []
    for name, text in {**drawings(store), PAGE: HEAD + markdown(store)}.items():
        path = os.path.join(folder, name)
        if not os.path.exists(path) or open(path).read() != text:
            found.append(name)
    return found
