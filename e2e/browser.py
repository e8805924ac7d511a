"""Chromium without a window, told what to do over two pipes (DevTools protocol, messages parted by NUL)."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from harness import CACHE, Skip, need_program, one_at_a_time, run_client

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"]
PATIENCE = 120
AXE = "axe-core@4.14.1"
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}
TABS_MAX = 200


@one_at_a_time("axe")
def axe_script():
    """axe-core, from npm once."""
    folder = os.path.join(CACHE, AXE.replace("@", "-"))
    path = os.path.join(folder, "node_modules", "axe-core", "axe.min.js")
    if not os.path.exists(path):
        npm = need_program("npm")
        os.makedirs(folder, exist_ok=True)
        done = run_client([npm, "install", "--no-audit", "--no-fund", "--prefix", folder, AXE], timeout=900)
        if done.returncode or not os.path.exists(path):
            raise Skip(f"npm install {AXE}: {done.stderr.strip()[-200:]}")
    with open(path, encoding="utf-8") as file:
        return file.read()


class Browser:
    """One page. Close it, or leave it to `with`."""

    def __init__(self, h):
        program = shutil.which("chromium")
        if not program:
            raise Skip("no chromium: scripts/deps e2e")
        self.place = tempfile.mkdtemp(prefix="browser-", dir=h.disk)
        theirs_in, self.out = os.pipe()
        self.input, theirs_out = os.pipe()
        high = [os.dup(theirs_in), os.dup(theirs_out)]  # where 3 and 4 are not in the way
        with open(os.path.join(h.logs, "browser.log"), "ab") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]} {high[0]}<&- {high[1]}>&-', program, *FLAGS,
                 f"--user-data-dir={self.place}", "about:blank"],
                pass_fds=high, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "HOME": self.place})
        h.processes.append(self.process)
        for number in (theirs_in, theirs_out, *high):
            os.close(number)
        self.serial, self.heard, self.events, self.session = 0, b"", [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.out)
        os.close(self.input)
        self.process.kill()
        self.process.wait()

    def message(self):
        while b"\0" not in self.heard:
            assert select.select([self.input], [], [], PATIENCE)[0], "the browser says nothing"
            more = os.read(self.input, 1 << 16)
            assert more, "the browser ended"
            self.heard += more
        text, self.heard = self.heard.split(b"\0", 1)
        return json.loads(text)

    def ask(self, method, **parameters):
        self.serial += 1
        request = {"id": self.serial, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.serial:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        self.ask("Page.navigate", url=url)

    def value(self, expression):
        """Of a JavaScript expression."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression):
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < end, f"this never came true: {expression}; the page: {self.text()[-800:]}"
            time.sleep(0.05)

    def text(self):
        return self.value("document.body.innerText")

    def screen(self, width, height, dark=False):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def picture(self, path):
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """Errors of the page's script, and what it wrote to the console or the browser's log."""
        return [event for event in self.events
                if event["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")]

    def urls(self):
        """Of every request of the page."""
        return [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]

    def hosts(self):
        return {url.split("/")[2] for url in self.urls() if "://" in url and not url.startswith(("data:", "blob:"))}

    def axe(self):
        """What axe-core finds wrong, as 'rule: element'; incomplete findings are none."""
        if not self.value("!!window.axe"):
            self.value(axe_script() + "; 0")
        return self.value("axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations.map("
                          "(one) => one.id + ': ' + one.nodes.slice(0, 3).map((node) => node.html.slice(0, 120)).join(' | ')))")

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=KEYS[name], **text)

    def tab_to(self, expression):
        for _ in range(TABS_MAX):
            if self.value(expression):
                return
            self.key("Tab")
        raise AssertionError(f"Tab never came to where {expression}")
