"""What sluice has to reach, and whether it does: every number of the bar stands here, once.

A goal names a workload (workloads.py) or a trial (trials.py), a figure of it, and the least or the most that will do.
Shares are rates by that of the limit, both at their best of the same rounds; times and CPU are the best of the rounds.
Where `bare` runs beside sluice, what it needs plus a tenth will do, too: no program that fills new files needs less, so
a machine whose pages cost more than the bar allows judges sluice by its own work.
`leader` is what the fastest other program reached when it was told its best settings, on the machine of the first run.
"""
import dataclasses
import statistics

LEAST, MOST = ">=", "<="


@dataclasses.dataclass(frozen=True)
class Goal:
    workload: str
    what: str
    figure: str  # share, cpu, seconds, ms, anon_mib; of trials: their own
    sense: str
    value: float
    leader: str = ""


BARE_FIGURES = ("share", "cpu")
BARE_MORE = 1.10
BARES = ("bare_1", "bare_2", "bare")

UNITS = {"share": "of the limit", "cpu": "CPU s/GB", "seconds": "s", "ms": "ms", "anon_mib": "MiB", "extra_s": "s more",
         "wasted": "% twice", "missed": "missed", "again": "ranges too many", "apart2": "the fastest's time",
         "apart8": "the fastest's time", "more2": "connections more", "more8": "connections more", "cost": "% more CPU", "wrong": "wrong", "beyond": "in flight"}

GOALS = (
    Goal("w1", "2 GiB over HTTP, new files on tmpfs", "share", LEAST, 0.62, "0.40"),
    Goal("w1", "2 GiB over HTTP, new files on tmpfs", "cpu", MOST, 0.55, "0.85"),
    Goal("w2", "2 GiB over S3, new files on tmpfs", "share", LEAST, 0.55, "0.41"),
    Goal("w2", "2 GiB over S3, new files on tmpfs", "cpu", MOST, 0.55, "0.72"),
    Goal("w1huge", "2 GiB over HTTP, tmpfs with huge pages", "share", LEAST, 0.82, "0.66"),
    Goal("w1huge", "2 GiB over HTTP, tmpfs with huge pages", "cpu", MOST, 0.38, "0.46"),
    Goal("w2huge", "2 GiB over S3, tmpfs with huge pages", "share", LEAST, 0.82, "0.66"),
    Goal("w2huge", "2 GiB over S3, tmpfs with huge pages", "cpu", MOST, 0.38, "0.46"),
    Goal("w1half", "512 MiB over HTTP, new files on tmpfs", "share", LEAST, 0.62),
    Goal("w1half", "512 MiB over HTTP, new files on tmpfs", "cpu", MOST, 0.55),
    Goal("w2half", "512 MiB over S3, new files on tmpfs", "share", LEAST, 0.55),
    Goal("w2half", "512 MiB over S3, new files on tmpfs", "cpu", MOST, 0.55),
    Goal("w1hugehalf", "512 MiB over HTTP, tmpfs with huge pages", "share", LEAST, 0.82),
    Goal("w1hugehalf", "512 MiB over HTTP, tmpfs with huge pages", "cpu", MOST, 0.38),
    Goal("w2hugehalf", "512 MiB over S3, tmpfs with huge pages", "share", LEAST, 0.82),
    Goal("w2hugehalf", "512 MiB over S3, tmpfs with huge pages", "cpu", MOST, 0.38),
    Goal("faulted", "2 GiB over HTTP, memory already faulted in", "share", LEAST, 0.90),
    Goal("w3", "24 x 100 MB below a prefix, S3", "share", LEAST, 0.60, "0.51"),
    Goal("w3", "24 x 100 MB below a prefix, S3", "cpu", MOST, 0.55, "0.80"),
    Goal("w3half", "8 x 64 MiB below a prefix, S3", "share", LEAST, 0.60),
    Goal("w3half", "8 x 64 MiB below a prefix, S3", "cpu", MOST, 0.55),
    Goal("w4", "2,005 x 64 KiB below a prefix, S3", "seconds", MOST, 0.35, "0.65"),
    Goal("w4", "2,005 x 64 KiB below a prefix, S3", "cpu", MOST, 2.0, "5"),
    Goal("w5plain", "1 GB `.tensors`, checked", "share", LEAST, 0.50, "0.37"),
    Goal("w5plain", "1 GB `.tensors`, checked", "cpu", MOST, 0.65, "1.25"),
    Goal("w5key", "1 GB `.tensors`, encrypted by key", "share", LEAST, 0.42, "0.26"),
    Goal("w5key", "1 GB `.tensors`, encrypted by key", "cpu", MOST, 1.1, "1.8"),
    Goal("w5passphrase", "1 GB `.tensors`, by password", "share", LEAST, 0.40, "0.24"),
    Goal("w5passphrase", "1 GB `.tensors`, by password", "cpu", MOST, 1.2, "1.95"),
    Goal("w6", "2 GiB over HTTPS", "share", LEAST, 0.75, "0.61"),
    Goal("w6", "2 GiB over HTTPS", "cpu", MOST, 0.80, "0.88"),
    Goal("w6half", "512 MiB over HTTPS", "share", LEAST, 0.75),
    Goal("w6half", "512 MiB over HTTPS", "cpu", MOST, 0.80),
    Goal("w7http", "512 MiB, far away, HTTP", "share", LEAST, 0.95, "0.83"),
    Goal("w7s3", "512 MiB, far away, S3", "share", LEAST, 0.92, "0.81"),
    Goal("w7shards", "24 x 100 MB, far away, S3", "share", LEAST, 0.95, "0.83"),
    Goal("w7small", "2,005 x 64 KiB, far away, S3", "share", LEAST, 0.95, "0.90"),
    Goal("w8http", "1 MB, cold process, HTTP", "ms", MOST, 12, "16"),
    Goal("w8s3", "1 MB, cold process, S3", "ms", MOST, 15, "55"),
    Goal("stalls", "1 % of the responses stall for 5 s", "extra_s", MOST, 0.3),
    Goal("stalls", "1 % of the responses stall for 5 s", "wasted", MOST, 2),
    Goal("flips", "one bit wrong in each GB, sidecar", "missed", MOST, 0),
    Goal("flips", "one bit wrong in each GB, sidecar", "again", MOST, 0),
    Goal("sidecar", "checking by a sidecar", "cost", MOST, 5),
    Goal("m64big", "peak memory, 64 connections, 2 GiB", "anon_mib", MOST, 64),
    Goal("m64half", "peak memory, 64 connections, 512 MiB", "anon_mib", MOST, 64),
    Goal("kills", "kill -9 at random points, run again", "wrong", MOST, 0),
    Goal("kills", "kill -9 at random points, run again", "beyond", MOST, 1),
    Goal("together", "two loads at once, the slower one", "apart2", MOST, 1.25),
    Goal("together", "eight loads at once, the slowest", "apart8", MOST, 1.5),
    Goal("together", "two loads at once, beside one alone", "more2", MOST, 0),
    Goal("together", "eight loads at once, beside one alone", "more8", MOST, 0),
)
TIMES = ("extra_s", "apart2", "apart8")
TRIAL_FIGURES = (*TIMES, "wasted", "missed", "again", "wrong", "beyond", "more2", "more8")


def is_peer(client):
    """Another program that does the same work; the limit and the bare way of writing a file do less."""
    return client != "limit" and client not in BARES and not client.startswith("sluice")


def wanted(goal, summary):
    """(what will do, whether that is bare's and a tenth) of a goal."""
    clients = summary.get(goal.workload, {})
    bares = [clients[name][KEYS[goal.figure][0]] for name in BARES if name in clients] if goal.figure in BARE_FIGURES else []
    if not bares:
        return goal.value, False
    bare = max(bares) / BARE_MORE if goal.sense == LEAST else min(bares) * BARE_MORE
    easier = bare < goal.value if goal.sense == LEAST else bare > goal.value
    return (bare, True) if easier else (goal.value, False)


def reached(goal, summary, figures):
    """(best, median, the best peer's name and figure) of a goal; best is None where nothing was measured.

    summary: {workload: {client: row of results.summarise()}}; figures: {(trial, figure): [values, one a round]}."""
    if goal.figure in TRIAL_FIGURES:
        values = figures.get((goal.workload, goal.figure))
        if not values:
            return None, None, None
        # A promise is as good as its worst round; a time is told by the middle one.
        middle = statistics.median(values)
        return (middle if goal.figure in TIMES else max(values)), middle, None
    clients = summary.get(goal.workload, {})
    ours = clients.get("sluice")
    if not ours:
        return None, None, None
    if goal.figure == "cost":
        without = clients.get("sluice_bare")
        if not without:
            return None, None, None
        return tuple(100 * (ours[key] / without[key] - 1) for key in ("cpu_best", "cpu_median")) + (None,)
    best, median = KEYS[goal.figure]
    peers = [(row[best], name) for name, row in clients.items() if is_peer(name)]
    peer = (max if goal.sense == LEAST else min)(peers) if peers else None
    return ours[best], ours[median], peer


KEYS = {"share": ("share_best", "share_median"), "cpu": ("cpu_best", "cpu_median"), "ms": ("best_ms", "median_ms"),
        "seconds": ("best_s", "median_s"), "anon_mib": ("anon_mib", "anon_mib")}


def met(goal, value, least):
    """Rounded as it is printed, so that what reads as reached is."""
    if value is None:
        return None
    value, least = round(value, digits(goal)), round(least, digits(goal))
    return value >= least if goal.sense == LEAST else value <= least


def digits(goal):
    return 2 if goal.figure in ("share", "cpu", "seconds", "beyond", *TIMES) else 1 if goal.figure in ("ms", "wasted", "cost") else 0


def judged(summary, figures):
    """A dict for each goal, in order: goal, wanted (value, whether it is bare's), best, median, peer (value, name) or None,
    met (None: not measured)."""
    rows = []
    for goal in GOALS:
        best, median, peer = reached(goal, summary, figures)
        will_do = wanted(goal, summary)
        rows.append({"goal": goal, "wanted": will_do, "best": best, "median": median, "peer": peer, "met": met(goal, best, will_do[0])})
    return rows


def markdown(rows):
    lines = ["| work | figure | bar | reached | median | best peer of this run | leader elsewhere | |",
             "| --- | --- | ---: | ---: | ---: | --- | ---: | --- |"]
    for row in rows:
        goal, number = row["goal"], digits(row["goal"])
        sign = "≥" if goal.sense == LEAST else "≤"
        value, by_bare = row["wanted"]
        aim = f"{sign} {goal.value:.{number}f}" + (f", here {value:.{number}f} by `bare`" if by_bare else "")
        cells = [f"`{goal.workload}`: {goal.what}", UNITS[goal.figure], aim]
        cells += ["", ""] if row["best"] is None else [f"{row['best']:.{number}f}", f"{row['median']:.{number}f}"]
        cells.append(f"{row['peer'][0]:.{number}f} {row['peer'][1]}" if row["peer"] else "")
        cells += [goal.leader, {None: "not measured", True: "met", False: "**not met**"}[row["met"]]]
        lines.append("| " + " | ".join(cells) + " |")
    count = [row["met"] for row in rows]
    lines += ["", f"{count.count(True)} met, {count.count(False)} not met, {count.count(None)} not measured."]
    return "\n".join(lines) + "\n"
