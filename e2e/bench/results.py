"""A folder of results: results.csv (a row for each run of a client), figures.csv (what trials found), facts.json (the
machine, and with which program each workload was measured). Everything else is made from these three.
"""
import csv
import datetime
import hashlib
import json
import os
import platform
import statistics
import subprocess

FIELDS = ["workload", "bytes", "round", "client", "seconds", "cpu", "server_cpu", "hwm_bytes", "anon_bytes", "other", "code"]
FIGURE_FIELDS = ["workload", "round", "figure", "value", "note"]
WHOLE = ("bytes", "round", "hwm_bytes", "anon_bytes", "code")
CALM = 0.12  # share of the machine that neither client nor servers may use for a run to count for CPU


def machine():
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) // (1 << 20)
    return f"{os.cpu_count()} cores of {model}, {memory} GiB, kernel {platform.release()}, clients and servers on the same cores, loopback"


def program_facts(program):
    with open(program, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()[:12]
    said = subprocess.run([program, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.split()
    return {"program": digest, "version": said[1] if len(said) > 1 else "?"}


class Results:
    def __init__(self, folder):
        self.folder, self.runs, self.figures, self.facts = folder, [], [], {"machine": "", "workloads": {}}
        if os.path.exists(self.path("facts.json")):
            with open(self.path("facts.json")) as file:
                self.facts = json.load(file)
            self.runs = [number_row(row) for row in self.read("results.csv")]
            self.figures = [{**row, "round": int(row["round"]), "value": float(row["value"])} for row in self.read("figures.csv")]

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        if not os.path.exists(self.path(name)):
            return []
        with open(self.path(name), newline="") as file:
            return list(csv.DictReader(file))

    def has(self, name, rounds, program):
        """Measured before, as often, with the same program?"""
        known = self.facts["workloads"].get(name)
        return bool(known) and known["rounds"] >= rounds and known["program"] == program["program"]

    def keep(self, name, rounds, program, runs, figures):
        """Instead of what was known of this workload."""
        self.runs = [row for row in self.runs if row["workload"] != name] + runs
        self.figures = [row for row in self.figures if row["workload"] != name] + figures
        today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
        self.facts["workloads"][name] = {"rounds": rounds, "measured": today, **program}
        self.save()

    def save(self):
        os.makedirs(self.folder, exist_ok=True)
        for name, fields, rows in (("results.csv", FIELDS, self.runs), ("figures.csv", FIGURE_FIELDS, self.figures)):
            with open(self.path(name + ".new"), "w", newline="") as file:
                writer = csv.DictWriter(file, fields, lineterminator="\n")
                writer.writeheader()
                writer.writerows({key: short(row.get(key, "")) for key in fields} for row in rows)
            os.rename(self.path(name + ".new"), self.path(name))
        with open(self.path("facts.json.new"), "w") as file:
            json.dump(self.facts, file, indent=1)
            file.write("\n")
        os.rename(self.path("facts.json.new"), self.path("facts.json"))

    def summary(self):
        """{workload: {client: row}}, in the order of measuring."""
        return {name: summarise([row for row in self.runs if row["workload"] == name])
                for name in dict.fromkeys(row["workload"] for row in self.runs)}

    def values(self):
        """{(trial, figure): [value of each round]}"""
        found = {}
        for row in self.figures:
            found.setdefault((row["workload"], row["figure"]), []).append(row["value"])
        return found

    def note(self, name):
        return next((row["note"] for row in self.figures if row["workload"] == name and row["note"]), "")


def number_row(row):
    for key in FIELDS:
        if key not in ("workload", "client"):
            row[key] = (int if key in WHOLE else float)(row[key] or 0)
    return row


def short(value):
    return f"{value:.6g}" if isinstance(value, float) else value


def summarise(rows):
    """{client: figures} of one workload: best, median and worst of the rounds, and shares of the limit of the same rounds."""
    limits = {row["round"]: row["bytes"] / row["seconds"] for row in rows if row["client"] == "limit" and not row["code"]}
    table = {}
    for client in dict.fromkeys(row["client"] for row in rows):
        mine = [row for row in rows if row["client"] == client]
        good = [row for row in mine if not row["code"]]
        if not good:
            continue
        rates = [row["bytes"] / row["seconds"] for row in good]
        seconds = [row["seconds"] for row in good]
        cpu = [row["cpu"] / row["bytes"] * 1e9 for row in [row for row in good if row["other"] <= CALM] or good]
        shares = [row["bytes"] / row["seconds"] / limits[row["round"]] for row in good if row["round"] in limits]
        table[client] = {
            "bytes": good[0]["bytes"], "runs": len(good), "failed": len(mine) - len(good),
            "best_gb_s": max(rates) / 1e9, "median_gb_s": statistics.median(rates) / 1e9, "worst_gb_s": min(rates) / 1e9,
            "best_s": min(seconds), "median_s": statistics.median(seconds), "worst_s": max(seconds),
            "best_ms": min(seconds) * 1e3, "median_ms": statistics.median(seconds) * 1e3,
            "share_best": max(rates) / max(limits.values()) if limits else 0,
            "share_median": statistics.median(shares) if shares else 0,
            "cpu_best": min(cpu), "cpu_median": statistics.median(cpu),
            "anon_mib": max(row["anon_bytes"] for row in good) / (1 << 20), "hwm_mib": max(row["hwm_bytes"] for row in good) / (1 << 20),
        }
    return table


def is_small(table):
    """Told in milliseconds, not in GB/s."""
    return any(row["bytes"] < 10_000_000 for row in table.values())


def markdown(table):
    """The table of one workload."""
    if is_small(table):
        lines = ["| client | best ms | median ms | CPU ms | peak anonymous MiB |", "| --- | ---: | ---: | ---: | ---: |"]
    else:
        lines = ["| client | best GB/s | median GB/s | share of the limit, best | median | CPU s/GB, best | median | peak anonymous MiB |",
                 "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for client, row in table.items():
        memory = "" if client == "limit" else f"{row['anon_mib']:.0f}"
        name = client + (f" ({row['failed']} of {row['failed'] + row['runs']} runs failed)" if row["failed"] else "")
        if is_small(table):
            lines.append(f"| {name} | {row['best_ms']:.1f} | {row['median_ms']:.1f} | {row['cpu_median'] * row['bytes'] / 1e6:.1f} | {memory} |")
            continue
        share = [f"{row['share_best']:.2f}", f"{row['share_median']:.2f}"] if row["share_best"] else ["", ""]
        lines.append(f"| {name} | {row['best_gb_s']:.2f} | {row['median_gb_s']:.2f} | {share[0]} | {share[1]} | "
                     f"{row['cpu_best']:.2f} | {row['cpu_median']:.2f} | {memory} |")
    return "\n".join(lines) + "\n"
