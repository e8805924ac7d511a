"""The blocks of commands in the documents: which are run by a check, and why each other one is not."""
import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLUSTER = "a cluster: e2e/cluster/run tries what it says"
# By page, a reason for all of its blocks, or by the number of a block from 0 on. A block that is in neither table is a fault.
NOT_RUN = {
    "README.md": {1: "scripts/try-root runs quickstart in fresh systems, checks_wheel.py pip"},
    "charts/sluice/README.md": CLUSTER,
    "docs/benchmarks.md": {0: CLUSTER, 1: "takes 45 minutes of a calm machine"},
    "docs/container.md": "checks_image.py and checks_image_kinds.py make and move images",
    "docs/credentials.md": "keys of the reader's; checks_clouds.py and checks_stores.py use others",
    "docs/csi.md": CLUSTER,
    "docs/development.md": "the gate itself is made of these",
    "docs/engines.md": "an engine and a GPU's worth of memory: checks_real_engines.py",
    "docs/gpu.md": "a GPU",
    "docs/helm.md": CLUSTER,
    "docs/http.md": "a socket in /run: checks_serve.py asks the same at its own",
    "docs/huggingface.md": {1: "a bucket of the reader's: checks_hf.py", 2: "an engine: checks_real_engines.py"},
    "docs/install.md": "checks_release.py installs all of it into fresh roots",
    "docs/kserve.md": CLUSTER,
    "docs/kubernetes.md": CLUSTER,
    "docs/library.md": "checks_library.py compiles against what is installed",
    "docs/pool.md": {1: "what another process deposited: checks_pool.py"},
    "docs/python.md": "checks_wheel.py makes and installs wheels",
    "docs/registries.md": "ghcr.io and images of the reader's: checks_oci.py, checks_oci_mirrors.py",
    "docs/serve.md": {0: "mounts as root; checks_serve.py starts daemons"},
    "docs/troubleshooting.md": CLUSTER,
}
# By page, the numbers of the blocks that checks_documents.py runs.
RUN = {
    "README.md": (0,), "docs/convert.md": (0, 1), "docs/encryption.md": (0,), "docs/huggingface.md": (0,), "docs/load.md": (0,),
    "docs/models.md": (0,), "docs/modelscope.md": (0,), "docs/pool.md": (0,), "docs/redis.md": (0,), "docs/serve.md": (1,),
    "docs/sidecars.md": (0,), "docs/signing.md": (0,), "docs/tour.md": (0, 1, 2, 3),
}
# Lines of these that are left out: they want more than a stand-in.
LEFT_OUT = {
    "--passphrase-file - ": "asks at a terminal",
    "sluice convert pytorch_model.bin": "checks_pytorch.py converts what torch wrote",
    "sluice node models --watch": "never ends",
    "sluice load gpt.yaml": "12 GiB of a public store",
    "--device cuda:": "a GPU",
    "--minisign-key minisign.key": "asks at a terminal; checks_signed.py signs with a key",
    "--set verify.minisign": "needs the line before it",
}


def blocks_of(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        text = file.read()
    return [re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE)
            for found in re.finditer(r"^( *)```(?:sh|console)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)]


def lines_of(page, number):
    """The commands of a block that is run, one a line."""
    lines = re.sub(r"\\\n", " ", blocks_of(page)[number]).splitlines()
    return [line for line in lines if not any(words in line + " " for words in LEFT_OUT)]


def unaccounted():
    """Blocks that are neither run nor said why, entries that mean none, and lines to leave out that are nowhere."""
    wrong, all_text = [], ""
    pages = {os.path.relpath(path, ROOT) for pattern in ("*.md", "docs/*.md", "manifests/*.md", "python/*.md", "charts/sluice/README.md")
             for path in glob.glob(os.path.join(ROOT, pattern))}
    for page in sorted(pages | set(NOT_RUN) | set(RUN)):
        count = len(blocks_of(page)) if page in pages else 0
        all_text += "".join(blocks_of(page)) if count else ""
        why, run = NOT_RUN.get(page, {}), set(RUN.get(page, ()))
        said = set(range(count)) if isinstance(why, str) else set(why)
        wrong += [f"{page}: block {number} is neither run by a check nor has a reason: e2e/document_blocks.py"
                  for number in sorted(set(range(count)) - said - run)]
        wrong += [f"e2e/document_blocks.py: {page} has no block {number}" for number in sorted((said | run) - set(range(count)))]
        wrong += [f"e2e/document_blocks.py: block {number} of {page} is run, and has a reason not to be" for number in sorted(said & run)]
    return wrong + [f"e2e/document_blocks.py: no block has '{words}'" for words in LEFT_OUT if words.strip() not in all_text]
