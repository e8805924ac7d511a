"""What the chart is made of, and what it renders."""
import json
import os
import re
import shutil
import sys
import tempfile

import yaml

from rendering import (
    CACHE, CHART, E2E, HELM, LOADER, NEWEST, OLDEST, ROOT, case_name, check, objects, parallel, read, render, run,
    schemas, validate, values_files,
)

GOLDEN = os.path.join(E2E, "golden")
HELM4 = os.path.join(CACHE, "bin", "helm4")


@check
def documents():
    """The schema and the README are what scripts/chart-docs makes, and every value is commented."""
    done = run(sys.executable, os.path.join(ROOT, "scripts", "chart-docs"), "--check")
    yield "schema and README", (done.stdout + done.stderr).splitlines() if done.returncode else []


@check
def examples():
    """The values that docs/helm.md shows are taken as they are, and what the chart's pages link to is there."""
    known = yaml.load(read(CHART, "values.yaml"), Loader=LOADER)
    base = {"models": {"m": {"size": "1Gi", "spec": {"source": {"uri": "s3://m/"}}}}, "metrics": {"force": True}}
    for block in re.findall(r"```yaml\n(.*?)```", read(ROOT, "docs", "helm.md"), re.DOTALL):
        values = {} if "{{" in block else yaml.load(block, Loader=LOADER)
        if not values or not set(values) <= set(known):
            continue
        with tempfile.NamedTemporaryFile("w") as under, tempfile.NamedTemporaryFile("w") as shown:
            yaml.safe_dump(base, under)
            yaml.safe_dump(values, shown)
            under.flush()
            shown.flush()
            done = run(HELM, "template", "models", CHART, "--kube-version", NEWEST, "--values", under.name, "--values", shown.name)
        yield f"values of {', '.join(values)}", [] if done.returncode == 0 else [done.stderr[-500:]]
    links = re.findall(r"\]\(([^):]+?)(?:#[^)]*)?\)", read(CHART, "README.md"))
    yield "links", [f"no {link}" for link in links if not os.path.exists(os.path.join(CHART, link))]


@check
def closed_schema():
    """Every object of the schema lists its keys, but for those that Kubernetes judges."""
    open_places = []

    def walk(node, path):
        if isinstance(node, dict):
            if node.get("type") == "object" and node.get("additionalProperties", True) is True:
                open_places.append(path)
            for key, below in node.items():
                walk(below, f"{path}/{key}")
        elif isinstance(node, list):
            for number, below in enumerate(node):
                walk(below, f"{path}/{number}")

    walk(json.loads(read(CHART, "values.schema.json")), "")
    allowed = {"/properties/global", "/definitions/anything"}
    yield "closed", [f"{place} takes any key" for place in open_places if place not in allowed]


@check
def versions():
    """The chart's appVersion is the program's version."""
    program = re.search(r"^project\(sluice VERSION ([0-9.]+)", read(ROOT, "CMakeLists.txt"), re.MULTILINE)[1]
    chart = yaml.load(read(CHART, "Chart.yaml"), Loader=LOADER)
    yield "appVersion", [] if chart["appVersion"] == program else [f"appVersion {chart['appVersion']}, program {program}"]


# ---- renders --------------------------------------------------------------------------------------


@check
def lint():
    """helm lint --strict, with each values file."""
    def one(path):
        done = run(HELM, "lint", "--strict", CHART, "--values", path)
        return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()[-10:]
    for path, wrong in parallel(one, values_files()):
        yield case_name(path), wrong


# What is rendered only for a Kubernetes that knows it: older APIs may complain of it.
NEWER = {"serviceAccountTokenInSecrets": "1.35."}


def older_api(folder, line):
    """Is this the complaint of an API about a field that came after it?"""
    return any(key in line and tuple(map(int, os.path.basename(folder).split(".")[:2])) < tuple(map(int, since.split(".")[:2]))
               for key, since in NEWER.items())


@check
def strict():
    """Each values file, rendered for the oldest and the newest Kubernetes, is valid for three versions of its API."""
    def one(job):
        path, version, folder = job
        text, error = render(path, version)
        return [error] if error else [line for line in validate(text, folder) if not (version == NEWEST and older_api(folder, line))]
    jobs = [(path, version, folder) for path in values_files() for version in (OLDEST, NEWEST) for folder in schemas()]
    for (path, version, folder), wrong in parallel(one, jobs):
        yield f"{case_name(path)} for {version}, API {os.path.basename(folder)}", wrong


@check
def mistakes():
    """The validation is strict: a misspelt key anywhere is told, in our kinds as in those of others."""
    text, _ = render(os.path.join(CHART, "ci", "everything-on-values.yaml"))
    folder = schemas()[-1]
    for kind, key in (("ServiceAccount", "automountServiceAccountToken"), ("CronJob", "backoffLimit"), ("Pod", "medium"),
                      ("NetworkPolicy", "policyTypes"), ("PodMonitor", "interval"), ("PrometheusRule", "expr"),
                      ("ClusterStorageContainer", "workloadType")):
        whole = next(part for part in text.split("\n---\n") if f"\nkind: {kind}\n" in part)
        yield kind, [] if validate(whole.replace(f" {key}:", f" {key}z:").replace(f"\n{key}:", f"\n{key}z:"), folder) else \
            [f"{key}z was accepted"]


@check
def golden():
    """What is rendered has not changed by accident; --update writes it anew."""
    for path in values_files():
        text, error = render(path)
        kept = os.path.join(GOLDEN, f"{case_name(path)}.yaml")
        wrong = [error] if error else []
        if not error and (not os.path.exists(kept) or read(kept) != text):
            with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as made:
                made.write(text)
                made.flush()
                wrong = run("diff", "-u", kept, made.name).stdout.splitlines()[2:20] or ["no golden render yet"]
                wrong.append("if that is meant: scripts/check-chart --update")
        yield case_name(path), wrong


@check
def helm4():
    """Helm 4 accepts the chart and renders the same."""
    def one(path):
        text, error = render(path, NEWEST, HELM4)
        if error:
            return [error]
        lint4 = run(HELM4, "lint", "--strict", CHART, "--values", path)
        if lint4.returncode:
            return (lint4.stdout + lint4.stderr).splitlines()[-10:]
        same = sorted(map(str, objects(text))) == sorted(map(str, objects(render(path)[0])))
        return [] if same else ["renders something else than helm 3"]
    for path, wrong in parallel(one, values_files()):
        yield case_name(path), wrong


@check
def notes():
    """NOTES are written for each values file, and warn of models without a size."""
    with tempfile.TemporaryDirectory() as directory:
        # Without a cluster helm renders no notes, so they become a ConfigMap here.
        chart = os.path.join(directory, "sluice")
        shutil.copytree(CHART, chart)
        text = read(chart, "templates", "NOTES.txt")
        os.remove(os.path.join(chart, "templates", "NOTES.txt"))
        with open(os.path.join(chart, "templates", "notes.yaml"), "w", encoding="utf-8") as file:
            file.write(f'{{{{- define "notes" }}}}{text}{{{{ end -}}}}\nkind: Notes\nmetadata: {{}}\n'
                       'text: {{ include "notes" . | toJson }}\n')

        def one(path):
            done = run(HELM, "template", "models", chart, "--namespace", "inference", "--kube-version", NEWEST,
                       "--values", path, "--show-only", "templates/notes.yaml")
            if done.returncode:
                return [done.stderr[-400:]]
            said = objects(done.stdout)[0]["text"]
            models = yaml.load(read(path), Loader=LOADER).get("models", {})
            expected = ["helm test models"] if "tests: {enabled: false}" not in read(path) else []
            expected += ["WARNING: loader.settings turns"] if "tls.verify: false" in read(path) else []
            expected += [f"WARNING: models.{name}.size" for name, model in models.items() if "size" not in model]
            return [f"no {words!r} in the notes" for words in expected if words not in said]
        for path, wrong in parallel(one, values_files()):
            yield case_name(path), wrong


@check
def kubernetes():
    """Versions that are too old are refused; those with a vendor's suffix are not."""
    for version, taken in (("1.28.9", False), ("1.29.0", True), ("v1.31.4-gke.100", True), ("v1.29.1+k3s2", True)):
        done = run(HELM, "template", "models", CHART, "--kube-version", version)
        right = done.returncode == 0 if taken else "incompatible with Kubernetes" in done.stderr
        yield version, [] if right else [done.stderr[-300:] or "accepted"]


@check
def specs():
    """What the ConfigMaps hold are specs, as docs/reference/spec.schema.json has them, one and all in one file; those of the pool are
    the daemon's alone."""
    folder = schemas()[-1]
    for path in values_files():
        wrong = []
        models = yaml.load(read(path), Loader=LOADER).get("models", {})
        models = [name for name, model in models.items() if "pool" not in model["spec"].get("sink", {})]
        files = {}
        for item in objects(render(path)[0]):
            if item["kind"] == "ConfigMap" and item["metadata"]["name"].endswith("-specs"):
                files = item["data"]
        for name, text in files.items():
            wrong += [f"{name}: {line}" for line in validate(text, folder)]
        found = [item["metadata"]["name"] for item in objects(files.get("all.yaml", ""))]
        if found != sorted(models) or not {f"{name}.yaml" for name in models} <= set(files):
            wrong.append(f"models {sorted(models)}, in all.yaml {found}, files {sorted(files)}")
        yield case_name(path), wrong


@check
def kserve_uris():
    """The ClusterStorageContainers of the chart and of the manifests take every store's scheme behind sluice+, and none without."""
    spec = json.loads(read(CHART, "values.schema.json"))["definitions"]["modelSpec"]["properties"]["source"]["properties"]["uri"]["pattern"]
    schemes = re.findall(r"\|([a-z0-9]+):", spec)
    text, _ = render(next(path for path in values_files() if case_name(path) == "mirror"))
    manifests = os.path.join("manifests", "kserve")
    for name, documents in (("the chart's", text), *((name, read(ROOT, manifests, name)) for name in sorted(os.listdir(os.path.join(ROOT, manifests)))
                                                     if name.endswith(".yaml"))):
        for item in objects(documents):
            if item["kind"] == "ClusterStorageContainer":
                prefixes = tuple(row["prefix"] for row in item["spec"]["supportedUriFormats"])
                yield name, [f"not sluice+{scheme}://" for scheme in schemes if not f"sluice+{scheme}://".startswith(prefixes)] + \
                    [f"{scheme}://, too" for scheme in schemes if f"{scheme}://".startswith(prefixes)] + ([] if len(schemes) > 13 else [f"{schemes}"])


@check
def names():
    """Names stay within the limits of Kubernetes, however the release is called."""
    release = "r" * 53
    path = os.path.join(CHART, "ci", "cron-values.yaml")
    done = run(HELM, "template", release, CHART, "--values", path, "--kube-version", NEWEST)
    wrong = [done.stderr] if done.returncode else []
    for item in objects(done.stdout):
        limit = 52 if item["kind"] == "CronJob" else 63
        if len(item["metadata"]["name"]) > limit:
            wrong.append(f"{item['kind']} {item['metadata']['name']} is longer than {limit}")
        wrong += [f"{item['kind']}: label {key} is longer than 63" for key, value in item["metadata"]["labels"].items()
                  if len(value) > 63]
    yield "a release of 53 letters", wrong


def update_golden():
    os.makedirs(GOLDEN, exist_ok=True)
    for path in values_files():
        text, error = render(path)
        if error:
            sys.exit(f"{case_name(path)}: {error}")
        with open(os.path.join(GOLDEN, f"{case_name(path)}.yaml"), "w", encoding="utf-8") as file:
            file.write(text)
