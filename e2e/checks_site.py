"""The handbook as a site: built without a warning, read in a browser from one server alone, searched; dead links are found."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

from browser import Browser
from harness import CACHE, ROOT, Skip, check, free_port, one_at_a_time

ROOMS = ("docs",)
LATE = True
FOREIGN = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")


@one_at_a_time("site")
def build(tree, folder):
    return subprocess.run([sys.executable, os.path.join(tree, "scripts", "site"), folder], capture_output=True, text=True,
                          env={**os.environ, "SLUICE_CACHE": CACHE}, timeout=900)


@check()
def the_handbook_is_a_site(h):
    """scripts/site builds every page in strict mode; a browser reads it, and finds a word, with no request to another host; two
    versions are offered; a dead link, a dead heading and a page that nobody finds end the build."""
    folder, tree = h.directory("site"), h.directory("site-tree")
    done = build(ROOT, folder)
    if "pip" in done.stdout + done.stderr and "failed" in done.stderr:
        raise Skip(f"no packages for scripts/site: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("docs", "scripts", "packaging"):
        shutil.copytree(os.path.join(ROOT, part), os.path.join(tree, part))
    for part in os.listdir(ROOT):  # what documents lead to
        if not os.path.exists(os.path.join(tree, part)) and not part.startswith((".git", "build")):
            os.symlink(os.path.join(ROOT, part), os.path.join(tree, part))
    for page, words in (("dead.md", "[nowhere](gone.md)"), ("dead.md", "[no heading](index.md#gone)"), ("lonely.md", "text")):
        path = os.path.join(tree, "docs", page)
        with open(path, "w") as file:
            file.write(f"# Dead\n\n{words}\n")
        failed = build(tree, h.directory("site-dead"))
        assert failed.returncode == 1 and page.split(".")[0] in failed.stdout + failed.stderr, failed
        os.unlink(path)
    with open(os.path.join(folder, "versions.json")) as file:
        here = json.load(file)[0]["version"]
    for path in glob.glob(os.path.join(folder, here, "**", "*.html"), recursive=True):
        with open(path, encoding="utf-8") as file:
            assert not FOREIGN.search(file.read()), path
    shutil.copytree(os.path.join(folder, here), os.path.join(folder, "0.0.1"))
    with open(os.path.join(folder, "versions.json"), "w") as file:
        json.dump([{"version": here, "title": here, "aliases": []}, {"version": "0.0.1", "title": "0.0.1", "aliases": []}], file)
    port = free_port()
    server = h.serve("site", [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", folder], port)
    with Browser(h) as browser:
        browser.screen(1280, 860)
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait_for(f"location.pathname === '/{here}/index.html' && document.querySelectorAll('.md-version__link').length === 2")
        browser.value("document.querySelector('.md-search__input').focus()")
        browser.ask("Input.insertText", text="evict")
        browser.wait_for("document.querySelectorAll('.md-search-result__item').length > 0")
        browser.open(f"http://127.0.0.1:{port}/{here}/tour.html")
        browser.wait_for("[...document.images].length === 2 && [...document.images].every((one) => one.complete && one.naturalWidth > 0)")
        assert browser.hosts() == {f"127.0.0.1:{port}"}, browser.hosts()
    h.stop(server)
