"""The page of the node daemon in a real browser: who holds what, live; on a narrow screen and in the dark."""
import os

from browser import Browser
from checks_pool import SMALL_BYTES, GatedServer, User, library_of
from checks_serve import Node, model
from harness import check, wait_for

WIDTHS = ((1200, 900), (360, 780))
READABLE = 4.5  # contrast of text, as WCAG AA asks
NAME = "a-model-with-a-rather-long-name-for-a-narrow-screen-0123456789"

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
    """Fits every screen, can be read in light and dark; SLUICE_E2E_PICTURES names a folder for what it looks like."""
    folder = os.environ.get("SLUICE_E2E_PICTURES")
    for width, height in WIDTHS:
        for dark in (False, True):
            browser.screen(width, height, dark)
            wide = browser.value("document.documentElement.scrollWidth")
            assert wide <= width, f"the page is {wide} pixels wide on a screen of {width}: {browser.value(WIDEST)}"
            contrast, text = browser.value(CONTRAST)
            assert contrast >= READABLE, f"contrast {contrast:.1f} of '{text}', {'dark' if dark else 'light'}"
            if folder:
                browser.picture(os.path.join(folder, f"{what}-{width}-{'dark' if dark else 'light'}.png"))


@check()
def the_page_shows_who_holds_what(h):
    """In Chromium: models, versions, who has them for how long, as clients come and go; errors; nothing from other hosts,
    no error of its script; it fits a phone and can be read in light and dark."""
    library_of(h)
    server, node = GatedServer(SMALL_BYTES), Node(h)
    path = os.path.join(node.place, "pool.sock")
    with Browser(h) as browser:
        node.configure(f"pool: {{socket: {path}}}\n" + model("m", server.url) + "sink: {pool: {}}\n" +
                       model(NAME, server.url) + model("broken", os.path.join(node.place, "none.safetensors")))
        node.start()
        users = [User(h, path, number) for number in range(2)]
        assert [user.hear() for user in users] == ["attached"] * 2
        browser.open(f"http://127.0.0.1:{node.port}/")
        browser.wait_for("document.querySelector('#live')?.className === 'on'")
        holders = "document.querySelectorAll('#holdings tr:has(.users) li .age').length"
        browser.wait_for(f"{holders} >= 2")
        assert "loading" in browser.text(), browser.text()
        pictures(h, browser, "loading")
        server.gate.set()
        node.await_state("m")
        node.await_state(NAME)
        browser.wait_for("document.querySelectorAll('#holdings .state.published').length === 2")
        browser.wait_for("!!document.querySelector('#holdings .error')")
        browser.wait_for("document.querySelector('#published').textContent === '2'")
        text = browser.text()
        for user in users:
            assert f"pid {user.process.pid} uid {os.getuid()}" in text, text
        for words in ("in memory, of 1.00 GiB", "16.0 MiB", "nobody for", "pool", os.path.join(node.directory, NAME), "pinned"):
            assert words in text, f"'{words}' is not in: {text}"
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
        pictures(h, browser, "again")
        assert node.end() == 0
    server.close()
