"""The page in a real browser: who holds what, live; a hundred models, hostile names, actions, keyboard alone; on a phone, a
laptop and a wide screen, light and dark, without a finding of axe-core; the listing of `share` in the same clothes."""
import json
import os
import re

from browser import Browser
from checks_pool import SMALL_BYTES, GatedServer, User, library_of
from checks_serve import TOKEN, Node, model
from harness import check, free_port, http_get, wait_for

ROOMS = ("node/web",)
WIDTHS = ((375, 812), (1280, 860), (1920, 1080))
READABLE = 4.5  # contrast of text, as WCAG AA asks
NAME = "a-model-with-a-rather-long-name-for-a-narrow-screen-0123456789"
HOSTILE = "<img src=x onerror=document.hacked=1>&quot;'"
MANY = 100

WIDEST = """[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth - 20)
  .map((e) => e.tagName + "." + e.className + " " + e.textContent.slice(0, 40)).join(", ")"""

# The lowest contrast of any text with what is behind it, and which text that is.
CONTRAST = """(() => {
  const light = (rgb) => { const [r, g, b] = rgb.map((c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
                           return .2126 * r + .7152 * g + .0722 * b; };
  const rgba = (text) => { const n = text.match(/[0-9.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const behind = (element) => { for (; element; element = element.parentElement) {
      const color = rgba(getComputedStyle(element).backgroundColor); if (color[3] > 0) return color; } return [255, 255, 255, 1]; };
  let worst = [99, ""];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].filter((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own.length || !element.getClientRects().length || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
    const a = light(rgba(getComputedStyle(element).color).slice(0, 3)), b = light(behind(element).slice(0, 3));
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < worst[0]) worst = [contrast, own[0].textContent.trim()];
  }
  return worst; })()"""


def pictures(h, browser, what):
    """Fits every screen, can be read in light and dark, and axe-core finds nothing; SLUICE_E2E_PICTURES names a folder for what it
    looks like."""
    folder = os.environ.get("SLUICE_E2E_PICTURES")
    for width, height in WIDTHS:
        for dark in (False, True):
            browser.screen(width, height, dark)
            wide = browser.value("document.documentElement.scrollWidth")
            assert wide <= width, f"the page is {wide} pixels wide on a screen of {width}: {browser.value(WIDEST)}"
            contrast, text = browser.value(CONTRAST)
            assert contrast >= READABLE, f"contrast {contrast:.1f} of '{text}', {'dark' if dark else 'light'}"
            findings = browser.axe()
            assert not findings, f"{what}, {width} pixels, {'dark' if dark else 'light'}: {findings}"
            if folder:
                browser.picture(os.path.join(folder, f"{what}-{width}-{'dark' if dark else 'light'}.png"))


def opened(browser, node):
    browser.open(f"http://127.0.0.1:{node.port}/")
    browser.wait_for("document.querySelector('#live')?.className === 'on'")


def row(name):
    return f"[...document.querySelectorAll('#models tr')].find((row) => row.querySelector('.name').textContent === '{name}')"


def click(browser, label):
    """The button of this name, as somebody who only hears the page finds it."""
    found = f"[...document.querySelectorAll('button')].find((one) => (one.ariaLabel || one.textContent) === '{label}' && one.offsetParent)"
    browser.wait_for(f"!!{found}")
    browser.value(f"{found}.click()")


def unlock(browser, token):
    click(browser, "Unlock actions")
    browser.value(f"document.querySelector('#token').value = '{token}'")
    browser.value("document.querySelector('#form').requestSubmit()")


@check()
def the_page_shows_who_holds_what(h):
    """In Chromium: models, versions, who has them for how long, as clients come and go; errors first; nothing from other hosts,
    no error of its script; what came before it was opened; three widths, light and dark, no finding of axe-core."""
    library_of(h)
    server, node = GatedServer(SMALL_BYTES), Node(h)
    path = os.path.join(node.place, "pool.sock")
    with Browser(h) as browser:
        node.configure(f"loadsAtOnce: 3\npool: {{socket: {path}}}\n" + model("m", server.url) + "sink: {pool: {}}\n" +
                       model(NAME, server.url) + model("broken", os.path.join(node.place, "none.safetensors")))
        node.start(env={"NODE_NAME": "gpu-node-7"})
        users = [User(h, path, number) for number in range(2)]
        assert [user.hear() for user in users] == ["attached"] * 2
        opened(browser, node)
        holders = "document.querySelectorAll('#models .users li .age').length"
        browser.wait_for(f"{holders} >= 2")
        browser.wait_for("document.querySelectorAll('#failures .error').length === 1")
        browser.wait_for("document.title === '(1 failed) gpu-node-7 · sluice'")
        browser.wait_for("document.querySelector('#about').textContent.startsWith('version ')")
        assert "loading" in browser.text(), browser.text()
        assert browser.value("document.querySelector('#failures .name').textContent") == "broken"
        assert browser.value("document.querySelectorAll('#models button').length") == 0, "actions without a token"
        browser.wait_for("!!document.querySelector('#failures .load > .facts a')")
        facts = browser.value("document.querySelector('#failures .load > .facts').innerText")
        assert re.match(r"since \d\d:\d\d\s+\d+ (try|tries)\s+NOT_FOUND: what to do", facts), facts
        link = browser.value("document.querySelector('#failures a').href")
        assert link.endswith("/v1/errors/NOT_FOUND") and json.loads(http_get(link)[1])["runbook"].startswith("docs/troubleshooting.md"), link
        sums = "['failed', 'active', 'queued', 'ready', 'absent'].reduce((sum, id) => sum + Number(document.getElementById(id).textContent), 0)"
        browser.wait_for(f"{sums} === 3 && document.querySelectorAll('#models tr').length === 3")
        browser.wait_for("!!document.querySelector('#chart .edge')")  # a whole step of the chart has gone by
        first = browser.value("Number(document.querySelector('#chart .edge').getAttribute('d').match(/^M([0-9.]+)/)[1])")
        assert first > 200, f"the line begins at {first}, long before the daemon"
        assert browser.value("document.querySelector('#heldBar').max") == 1 << 30
        assert browser.value("document.querySelector('#roomBar').position") >= 0
        pictures(h, browser, "loading")
        server.gate.set()
        node.await_state("m")
        node.await_state(NAME)
        browser.wait_for("document.querySelectorAll('#models .state.ready').length === 2")
        browser.wait_for("document.querySelector('#ready').textContent === '2'")
        text = browser.text()
        for user in users:
            assert f"pid {user.process.pid} uid {os.getuid()}" in text, text
        for words in ("in memory, of 1.00 GiB", "16.0 MiB", "unused for", "pool", os.path.join(node.directory, NAME), "pinned"):
            assert words in text, f"'{words}' is not in: {text}"
        browser.wait_for("document.querySelector('#uncheckedText').textContent.includes('unchecked')")
        browser.wait_for("document.querySelector('#peak').textContent !== 'peak 0 bytes/s'")
        opened(browser, node)  # again: the server has kept what came
        browser.wait_for("document.querySelector('#peak').textContent.startsWith('peak ') && "
                         "document.querySelector('#peak').textContent !== 'peak 0 bytes/s'")
        browser.wait_for("document.querySelectorAll('#finished li').length >= 2")
        browser.value("document.querySelector('#finishedSection').open = true")
        item = browser.value("document.querySelector('#finished li').innerText")
        assert re.search(r"at \d\d:\d\d\s", item) and not re.search(r"iB\d|/sin", item), item
        reasons = browser.value("[document.querySelector('#finished .error').innerText, document.querySelector('#failures .error').innerText]")
        assert reasons[0] == reasons[1], reasons
        browser.wait_for("document.querySelectorAll('#failures .error').length === 1")
        pictures(h, browser, "ready")
        assert users.pop().end() == 0
        browser.wait_for(f"{holders} === 1")
        users.pop().process.kill()
        browser.wait_for(f"{holders} === 0")
        assert browser.hosts() == {f"127.0.0.1:{node.port}"}, browser.hosts()
        assert not browser.complaints(), browser.complaints()
        assert node.end() == 0
        browser.wait_for("document.querySelector('#live')?.className === 'off'")
        node.start()
        wait_for("the port", lambda: node.get("/v1/models")[0] == 200)
        browser.wait_for("document.querySelector('#live')?.className === 'on'")
        assert node.end() == 0
    server.close()


@check()
def the_page_acts_for_who_has_the_token(h):
    """Pin, evict, retry and load from the page: only after the right token, which is in no URL and in no storage that lasts; a refusal
    is shown; another tab knows nothing of it."""
    node = Node(h)
    file = os.path.join(node.place, "late.safetensors")
    with Browser(h) as browser:
        node.configure(model("late", file) + "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: here}\n"
                       f"source: {{uri: \"{node.config}\"}}\n")
        node.start()
        node.await_state("here")
        opened(browser, node)
        unlock(browser, "a wrong token of some length")
        browser.wait_for("document.querySelector('#dialogError').textContent.includes('This token is wrong')")
        assert browser.value("sessionStorage.length + localStorage.length") == 0
        click(browser, "Cancel")
        unlock(browser, TOKEN)
        browser.wait_for("!document.querySelector('#dialog').open")
        assert browser.value("[location.href, document.cookie, localStorage.length, sessionStorage.length]") == \
            [f"http://127.0.0.1:{node.port}/", "", 0, 1]
        pictures(h, browser, "actions")
        with open(file, "wb") as late:
            late.write(len(b"{}").to_bytes(8, "little") + b"{}")
        click(browser, "Retry late")
        node.await_state("late")
        browser.wait_for("document.querySelector('#failureSection').hidden")
        labels = browser.value("[...document.querySelectorAll('#models button')].map(one => one.getAttribute('aria-label'))")
        assert "Reload here" in labels and not {"Evict here", "Unpin here", "Pin here"} & set(labels), labels  # the config pins it
        click(browser, "Load a model")
        browser.value("document.querySelector('#spec').value = 'kind: Modle'")
        click(browser, "Load")
        browser.wait_for("document.querySelector('#dialogError').textContent.includes('is missing')")
        browser.value("document.querySelector('#spec').value = 'apiVersion: sluice/v1alpha1\\nkind: Model\\n"
                      f"metadata: {{name: asked}}\\nsource: {{uri: \"{file}\"}}'")
        click(browser, "Load")
        node.await_state("asked")
        click(browser, "Evict asked")
        pictures(h, browser, "dialog")
        click(browser, "Evict")
        node.await_state("asked", "absent")
        click(browser, "Load asked")
        node.await_state("asked")
        click(browser, "Pin asked")
        wait_for("the pin", lambda: node.model("asked")["pinned"])
        browser.wait_for("!document.querySelector('[aria-label=\"Evict asked\"]')")
        click(browser, "Unpin asked")
        wait_for("its end", lambda: not node.model("asked")["pinned"])
        assert all(TOKEN not in url for url in browser.urls()), browser.urls()
        click(browser, "Lock actions")
        browser.wait_for("document.querySelectorAll('#models button').length === 0")
        assert browser.value("sessionStorage.length") == 0
        assert node.end() == 0


@check()
def the_page_is_used_with_the_keyboard_alone(h):
    """Tab and Enter reach the token's dialog, the filter, the order and an action; the focus is kept while the page is drawn anew."""
    node = Node(h)
    with Browser(h) as browser:
        spec = os.path.join(node.place, "quince.yaml")
        with open(spec, "w") as file:
            file.write(model("quince", node.config))
        node.configure(f"models: [{{file: {spec}, pin: false}}]\n" + model("apple", node.config))
        node.start()
        node.await_state("apple")
        node.await_state("quince")
        browser.screen(*WIDTHS[1])
        opened(browser, node)
        browser.wait_for("!document.querySelector('#unlock').hidden")
        browser.tab_to("document.activeElement.id === 'unlock'")
        browser.key("Enter")
        browser.wait_for("document.activeElement.id === 'token'")
        browser.ask("Input.insertText", text=TOKEN)
        browser.key("Enter")
        browser.wait_for("!document.querySelector('#dialog').open && document.body.className === 'may'")
        browser.wait_for("document.activeElement.id === 'unlock'")  # where it was
        browser.tab_to("document.activeElement.id === 'filter'")
        browser.ask("Input.insertText", text="QUINCE")
        browser.wait_for("document.querySelectorAll('#models tr').length === 1")
        browser.tab_to("document.activeElement.closest('th')?.dataset.sort === 'name'")
        browser.key("Enter")
        browser.wait_for("document.querySelector('th[data-sort=name]').ariaSort === 'ascending'")
        browser.tab_to("document.activeElement.ariaLabel === 'Evict quince'")
        browser.value("refresh()")
        assert browser.value("document.activeElement.ariaLabel") == "Evict quince"
        browser.key("Enter")
        browser.wait_for("document.querySelector('#dialog').open && document.activeElement.id === 'cancel'")
        browser.key("Escape")
        browser.wait_for("!document.querySelector('#dialog').open && document.activeElement.ariaLabel === 'Evict quince'")
        browser.tab_to("document.activeElement.tagName === 'SUMMARY'")
        browser.key("Enter")
        browser.wait_for("document.querySelector('#finishedSection').open")
        assert node.end() == 0


@check()
def the_page_shows_where_a_load_comes_from(h):
    """Of a load through caches: how much came from them, in a sentence, and a table of the worst, whose names stay text."""
    node = Node(h)
    places = [{"name": name, "kind": kind, "bytes": 1 << 30, "ranges": 9, "bytes_per_second": 1e8, "failures": failures, "wrong": wrong}
              for name, kind, failures, wrong in (("origin", "origin", {}, 0), ("http://" + HOSTILE, "cache", {"silent": 2, "busy": 1}, 1),
                                                  ("http://" + "a-long-name." * 7, "cache", {}, 0))]
    load = {"id": 1, "name": "m", "state": "reading", "uri": "s3://m/", "path": "/m", "percent": 50, "bytes_total": 6 << 30, "bytes_done": 3 << 30,
            "bytes_verified": 0, "bytes_fetched": 3 << 30, "cached": 2 << 30, "place_count": 17, "places": places, "bytes_per_second": 1e9,
            "seconds_left": 3, "retries": 0, "connections": 1}
    with Browser(h) as browser:
        node.configure(model("ready", node.config))
        node.start()
        node.await_state("ready")
        opened(browser, node)
        browser.wait_for("document.querySelectorAll('#models tr').length === 1")
        # Shown and looked at at once: the page soon has the node's own loads again.
        show = "(() => {{ seen.loads = [{}]; showLoads(); return [{}]; }})()".format
        text, count, row, images = browser.value(show(
            json.dumps(load), "document.querySelector('#loads').innerText, document.querySelectorAll('.places tbody tr').length, "
            "[...document.querySelector('.places .error').children].map((cell) => cell.textContent), document.querySelectorAll('img').length"))
        assert "67 % from 16 caches, the rest from the store." in text and "the store" in text and HOSTILE in text, text
        assert count == 3
        assert row[1:] == ["1.00 GiB", "95.4 MiB/s", "3", "1"], row
        assert images == 0 and not browser.value("document.hacked")
        pictures(h, browser, "places")
        load["places"], load["place_count"] = places[:1], 1
        assert browser.value(show(json.dumps(load), "document.querySelectorAll('.places').length")) == [0]  # without caches all is as ever
        assert node.end() == 0


@check()
def the_page_takes_a_hundred_models_and_hostile_names(h):
    """A hundred models, most of which failed: failures first, the queue, filter, order; markup in URIs and errors stays text."""
    node = Node(h)
    names = [f"model-{number:03}" for number in range(MANY)]
    with Browser(h) as browser:
        node.configure("".join(model(name, node.config if number % 10 == 0 else os.path.join(node.place, HOSTILE.replace("/", "")))
                               .replace('\\"', "") for number, name in enumerate(names)))
        node.start()
        for name in names[::10]:
            node.await_state(name)
        opened(browser, node)
        browser.wait_for(f"document.querySelectorAll('#models tr').length === {MANY}")
        browser.wait_for("document.querySelector('#failed').textContent === '90'")
        assert browser.value("document.querySelectorAll('img').length") == 0 and not browser.value("document.hacked")
        error = browser.value("document.querySelector('#failures .error').textContent")
        assert HOSTILE.replace("/", "") in error, error
        assert browser.value("document.querySelectorAll('#failures .load').length") == 12
        browser.screen(*WIDTHS[0])
        tall = browser.value("document.querySelector('#models').getBoundingClientRect().height")
        assert tall < MANY * 90, f"a hundred models are {tall} pixels high on a phone"
        click(browser, "Show all 90 below")
        assert browser.value("document.querySelectorAll('#models tr').length") == 90
        browser.value("(() => { const box = document.querySelector('#state'); box.value = ''; box.oninput(); })()")
        assert browser.value("document.querySelector('#models .state').textContent") != "ready"  # what failed comes first
        pictures(h, browser, "many")
        browser.value("(() => { const box = document.querySelector('#filter'); box.value = 'MODEL-05'; box.oninput(); })()")
        assert browser.value("[...document.querySelectorAll('#models .name')].map((name) => name.textContent).sort()") == names[50:60]
        browser.value("(() => { const box = document.querySelector('#state'); box.value = 'ready'; box.oninput(); })()")
        assert browser.value("[...document.querySelectorAll('#models .name')].map((name) => name.textContent)") == names[50:51]
        assert "1 of 100" in browser.text()
        assert not browser.complaints(), browser.complaints()
        assert node.end() == 0


@check()
def a_listing_wears_the_clothes_of_the_page(h):
    """`share`: a table for people with the page's style, which its policy allows; hostile file names stay text; fits three widths."""
    place, port = h.directory("listing"), free_port()
    for name in (HOSTILE.replace("/", ""), "model.safetensors", "a" * 200):
        with open(os.path.join(place, name), "w") as file:
            file.write("x" * 3000)
    os.makedirs(os.path.join(place, "folder"))
    process = h.serve("listing", [h.program, "share", place, "--listen", f"127.0.0.1:{port}"], port, env=h.environment())
    with Browser(h) as browser:
        browser.open(f"http://127.0.0.1:{port}/")
        browser.wait_for("document.querySelectorAll('tbody tr').length === 4")
        assert browser.value("document.querySelectorAll('img').length") == 0 and not browser.value("document.hacked")
        assert browser.value("getComputedStyle(document.querySelector('table')).borderTopLeftRadius") != "0px"
        browser.screen(*WIDTHS[0])
        cell = browser.value("document.querySelector('tbody td:last-child').textContent")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", cell), cell
        assert browser.value("(() => { const range = document.createRange(); range.selectNodeContents(document.querySelector('tbody td:last-child'));"
                             " return range.getClientRects().length; })()") == 1, "a time in several lines"
        pictures(h, browser, "listing")
        browser.open(f"http://127.0.0.1:{port}/folder/")
        browser.wait_for("document.querySelectorAll('tbody tr').length === 1")
        assert not browser.complaints(), browser.complaints()
        status, body, _ = http_get(f"http://127.0.0.1:{port}/model.safetensors")
        assert (status, len(body)) == (200, 3000)
    process.terminate()
    assert process.wait(60) == 0
