"""What is built on the metrics, in a real Prometheus: the chart's rules and its dashboard."""
import json
import os
import re
import urllib.parse

from harness import ROOT, check, free_port, http_get, need_program, port_open, wait_for
from servers import share

ROOMS = ("core/observe", "node/web", "charts")
FILES = os.path.join(ROOT, "charts", "sluice", "files")
CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: inference/models-sluice
    static_configs:
      - {{targets: ["127.0.0.1:{port}"], labels: {{namespace: inference, pod: engine-0}}}}
"""
# What says nothing about a process that has nothing to do, or that no kubelet calls, and what kube-state-metrics says.
QUIET = {("Bytes per second of processor", "A"), ("Calls of the kubelet", "A"), ("Nodes with every model", "A"),
         ("Nodes with every model", "B")}


def ask(origin, path, **query):
    status, body, _ = http_get(f"{origin}/api/v1/{path}?{urllib.parse.urlencode(query)}")
    answer = json.loads(body)
    assert status == 200 and answer["status"] == "success", f"{path} {query}: {body[-400:]}"
    return answer["data"]


def panels():
    """((title, letter), PromQL) of the dashboard, as Grafana asks when all of each variable is chosen."""
    with open(os.path.join(FILES, "dashboard.json"), encoding="utf-8") as file:
        board = json.load(file)
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield (panel["title"], target["refId"]), re.sub(r"\$\w+", ".*", target["expr"].replace("$__rate_interval", "1m"))


@check()
def prometheus_takes_rules_and_dashboard(h):
    """A real Prometheus scrapes a sidecar: every rule of the chart evaluates, every panel of the dashboard shows something."""
    program = need_program("prometheus")
    directory = h.directory("monitored")
    with open(os.path.join(directory, "weights.bin"), "wb") as file:
        file.write(os.urandom(4 << 20))
    _, store = share(h, directory)
    port, own = free_port(), free_port()
    process = h.start("load", "--stay", "--listen", f"127.0.0.1:{port}", f"{store}/weights.bin", "--to", h.fresh(), "--name", "m")
    wait_for("/readyz", lambda: port_open(port) and http_get(f"http://127.0.0.1:{port}/readyz")[0] == 200)

    config = os.path.join(h.disk, "prometheus.yaml")
    with open(config, "w", encoding="utf-8") as file:
        file.write(CONFIG.format(rules=os.path.join(FILES, "rules.yaml"), port=port))
    prometheus = h.serve("prometheus", [
        program, f"--config.file={config}", f"--storage.tsdb.path={h.directory('prometheus')}",
        f"--web.listen-address=127.0.0.1:{own}"], own)
    origin = f"http://127.0.0.1:{own}"
    wait_for("Prometheus", lambda: http_get(f"{origin}/-/ready")[0] == 200)  # it listens before it answers
    empty = dict(panels())
    asked = len(empty)

    def all_shown():
        for name in [name for name, query in empty.items() if ask(origin, "query", query=query)["result"]]:
            empty.pop(name)
        return set(empty) <= QUIET
    try:
        wait_for("a value in every panel", all_shown)
    except AssertionError as error:
        raise AssertionError(f"{error}; empty: {empty}") from None
    rules = [rule for group in ask(origin, "rules")["groups"] for rule in group["rules"]]
    wrong = [f"{rule['name']}: {rule['health']} {rule.get('lastError', '')}" for rule in rules if rule["health"] == "err"]
    assert rules and not wrong, wrong
    firing = [rule["name"] for rule in rules if rule["state"] != "inactive"]
    assert not firing, f"nothing is wrong, and there are alerts: {firing}"
    h.stop(process)
    h.stop(prometheus)
    return f"{asked} queries, {len(rules)} rules"
