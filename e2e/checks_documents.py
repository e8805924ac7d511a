"""The blocks of the documents that need nothing but this machine and a hub: README's command and the tour, as they are written. All other
blocks name stores, clusters or machines of the reader; scripts/check-docs holds that their commands, flags, files and specs exist."""
import os
import re
import signal
import subprocess

from checks_hf import files_of
from harness import ROOT, check, free_port, wait_for

ROOMS = ("tools/cli", "node/node")
REPOSITORY = "Qwen/Qwen2.5-0.5B-Instruct"
FILES = {name: data for name, (data, _) in files_of(2).items() if data and "%" not in name}


def blocks_of(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return re.findall(r"^```sh\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)


@check("hub")
def the_tour_works_and_leaves_nothing(h, hub):
    """README's one command, then each block of docs/tour.md in its order, in one folder, with a stand-in for the hub; folders of shared
    memory and the port are this check's own, the daemon runs beside. At the end nothing is left of it."""
    hub.commit(REPOSITORY, {name: (data, name == "model.safetensors") for name, data in FILES.items()})
    place, port, memory = h.fresh("tour"), free_port(), os.path.join(h.memory, "tour")
    os.makedirs(place)
    os.makedirs(memory)
    env = h.environment({"HF_ENDPOINT": hub.url, "PATH": os.path.dirname(os.path.abspath(h.program)) + ":" + os.environ["PATH"]})
    mine = (lambda block: block.replace("/dev/shm/", memory + "/").replace("9464", str(port)).replace("8GiB", "1GiB"))

    def run(block):
        done = subprocess.run(["sh", "-e", "-c", block], env=env, cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
        assert done.returncode == 0, f"{block}: {done.returncode}: {(done.stdout + done.stderr)[-900:]}"
        return done.stdout + done.stderr

    run(mine(next(block for block in blocks_of("README.md") if block.startswith("sluice load "))))
    load, look, node, remove = map(mine, blocks_of("docs/tour.md"))
    assert "this version is there already" in run(load)
    looked = run(look)
    assert "published" in looked and " wrong" in looked and "model." in looked, looked
    config, serve, models = re.fullmatch(r"(.*?^END\n)(sluice serve [^\n]*\n)(sluice node [^\n]*\n)", node, re.MULTILINE | re.DOTALL).groups()
    run(config)
    with open(os.path.join(h.logs, "tour"), "wb") as log:
        # Whoever runs this in the background may have had SIGINT ignored, which the daemon would go on doing.
        daemon = subprocess.Popen(["sh", "-c", "exec " + serve], env=env, cwd=place, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                  preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    wait_for("the model", lambda: os.path.exists(os.path.join(memory, "sluice-models", "qwen", "current", "model.safetensors")))
    assert "ready" in run(models)
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(60) in (0, 130)
    run(remove)
    assert os.listdir(memory) == [] and os.listdir(place) == [], (os.listdir(memory), os.listdir(place))
