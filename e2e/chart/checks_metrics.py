"""Rules and dashboard: syntax, tests, names of metrics, runbooks."""
import glob
import json
import os
import re
import shutil
import tempfile

import yaml

from rendering import CHART, E2E, LOADER, ROOT, check, objects, read, render, run

# What others measure, and our alerts use: kube-state-metrics, and the process metrics of any program.
FOREIGN_METRICS = {"kube_pod_init_container_status_restarts_total", "kube_pod_init_container_info", "kube_job_failed", "kube_cronjob_created",
                   "kube_cronjob_status_last_successful_time", "kube_daemonset_status_desired_number_scheduled",
                   "kube_daemonset_status_number_ready"}




def known_metrics():
    """Every name that the program's source gives to a metric; histograms have three series each."""
    found = set()
    for path in [*glob.glob(os.path.join(ROOT, "src", "core", "observe", "*.[cd]*")),
                 os.path.join(ROOT, "src", "node", "csi", "csi_server.c"),
                 os.path.join(ROOT, "src", "storage", "net", "host.c")]:
        text = read(path)
        found |= set(re.findall(r'"((?:sluice|process)_[a-z_]+)"', text))
    return found | {name + end for name in found if name.endswith("_seconds") for end in ("_bucket", "_sum", "_count")}


def metrics_in(expression):
    return set(re.findall(r"\b((?:sluice|process|kube)_[a-z_]+)\b", re.sub(r'"[^"]*"', '""', expression)))


def dashboard():
    return json.loads(read(CHART, "files", "dashboard.json"))


def expressions():
    """(where, PromQL) of everything in rules and dashboard."""
    for group in yaml.load(read(CHART, "files", "rules.yaml"), Loader=LOADER)["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"])
            yield f"variable {variable['name']}", found[1]


@check
def metric_names():
    """Rules and dashboard use metrics that exist."""
    known = known_metrics() | FOREIGN_METRICS
    for where, expression in expressions():
        yield where, [f"no metric is called {name}" for name in sorted(metrics_in(expression) - known)]


@check
def rules():
    """promtool accepts the rules, and each alert fires when it should (e2e/chart/rules_*test.yaml)."""
    promtool = shutil.which("promtool")
    if not promtool:
        yield "promtool", None
        return
    path = os.path.join(CHART, "files", "rules.yaml")
    done = run(promtool, "check", "rules", path)
    yield "check rules", [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()
    tests = ("rules_test.yaml", "rules_weeks_test.yaml")
    for name in tests:
        done = run(promtool, "test", "rules", os.path.join(E2E, name))
        yield name, [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()[:40]
    tested = set(re.findall(r"alertname: (\w+)", "".join(read(E2E, name) for name in tests)))
    wrong = [f"{rule['alert']} has no test" for group in yaml.load(read(path), Loader=LOADER)["groups"]
             for rule in group["rules"] if rule["alert"] not in tested]
    yield "every alert is tested", wrong
    # The expressions of the dashboard as recording rules: their syntax is what promtool checks.
    made = [{"record": "dashboard:panel", "expr": re.sub(r"\$\w+", "1m", expression), "labels": {"n": str(number)}}
            for number, (where, expression) in enumerate(expressions()) if where.startswith(("panel", "variable"))]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": made}]}, file)
        file.flush()
        done = run(promtool, "check", "rules", file.name)
    yield "PromQL of the dashboard", [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()
    for name in ("everything-on",):
        groups = [item["spec"] for item in objects(render(os.path.join(CHART, "ci", f"{name}-values.yaml"))[0])
                  if item["kind"] == "PrometheusRule"]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(groups[0] if groups else {}, file)
            file.flush()
            done = run(promtool, "check", "rules", file.name)
        yield "as rendered", [] if groups and done.returncode == 0 else (done.stdout + done.stderr).splitlines()


@check
def runbooks():
    """Every alert has its section in docs/troubleshooting.md, every section its alert, and every URL leads there."""
    alerts = {rule["alert"]: rule for group in yaml.load(read(CHART, "files", "rules.yaml"), Loader=LOADER)["groups"]
              for rule in group["rules"]}
    sections = re.findall(r"^### (Sluice\w+)$", read(ROOT, "docs", "troubleshooting.md"), re.MULTILINE)
    wrong = [f"{name} has no section" for name in alerts if name not in sections]
    wrong += [f"section {name} has no alert" for name in sections if name not in alerts]
    wrong += [f"{name}: runbook_url is {rule['annotations']['runbook_url']}" for name, rule in alerts.items()
              if rule["annotations"]["runbook_url"] != f"docs/troubleshooting.md#{name.lower()}"]
    yield "sections", wrong


@check
def dashboard_shape():
    """Panels have ids of their own, do not overlap, and ask the data source that was chosen."""
    board, wrong, taken = dashboard(), [], {}
    ids = [panel["id"] for panel in board["panels"]]
    wrong += [f"id {number} twice" for number in set(ids) if ids.count(number) > 1]
    for panel in board["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            wrong.append(f"{panel['title']} is wider than the page")
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                if taken.setdefault((x, y), panel["title"]) != panel["title"]:
                    wrong.append(f"{panel['title']} overlaps {taken[x, y]}")
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            wrong += [f"{panel['title']}: {source}" for source in sources if source.get("uid") != "${datasource}"]
            if not panel["fieldConfig"]["defaults"].get("unit"):
                wrong.append(f"{panel['title']} has no unit")
    used = set(re.findall(r"\$(\w+)", " ".join(expression for _, expression in expressions()))) - {"__rate_interval"}
    wrong += [f"no variable is called {name}" for name in used - {item["name"] for item in board["templating"]["list"]}]
    yield "shape", sorted(set(wrong))
