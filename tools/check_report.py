"""Open a comparison's report.html in a real headless Chromium and check what only a browser knows.

Not a part of the default tests: .ci/full runs it. It talks to the browser over its debugging pipe with the standard
library alone. Checked: nothing is requested besides the file itself, no console message, no horizontal overflow of the
page (wide and narrow), text has a contrast of at least 4.5 in light and in dark, every image and region has a name, no
id is used twice, and Tab reaches every summary and scrollable region with a visible focus.

usage: python tools/check_report.py REPORT.html [--shots FOLDER] [--browser PATH]
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip

CONTRAST = """
(() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1] };
  const lum = c => { const f = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
                     return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]) };
  const back = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
                      if (c[3] === 1) return c } return [255, 255, 255] };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest('title,desc,.skip,style') || e.classList.contains('inside')) continue;
    const style = getComputedStyle(e), ink = parse(e.closest('svg') ? style.fill : style.color);
    const a = lum(ink), b = lum(back(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push([e.textContent.trim().slice(0, 40), +ratio.toFixed(2)]);
  }
  return bad;
})()
"""

STRUCTURE = """
(() => {
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  const named = e => { const by = e.getAttribute('aria-labelledby');
    return e.getAttribute('aria-label') || (by && by.split(' ').every(i => document.getElementById(i)?.textContent)) };
  return {
    twice: ids.filter((id, i) => ids.indexOf(id) !== i),
    nameless: [...document.querySelectorAll('[role],section')].filter(e => !named(e)).map(e => e.outerHTML.slice(0,
    80)), overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    headings: [...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1]),
    stops: [...document.querySelectorAll('summary,[tabindex="0"],a[href]')].filter(e => e.checkVisibility()).length,
    paper: getComputedStyle(document.body).backgroundColor,
  };
})()
"""

FOCUSED = """
(() => { const e = document.activeElement, s = getComputedStyle(e);
  const again = e.dataset.reached === 'yes'; e.dataset.reached = 'yes';
  return [e.tagName, again, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; })()
"""


class Browser:
    """One Chromium with one page, over file descriptors 3 and 4."""

    def __init__(self, program: str, profile: str) -> None:
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        flags = (*FLAGS, f"--user-data-dir={profile}")

        def wire() -> None:  # the browser wants its pipe on descriptors 3 and 4, whatever numbers ours have
            low, high = os.dup(to_child), os.dup(from_child)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            [program, *flags, "about:blank"], preexec_fn=wire, close_fds=False, stderr=subprocess.DEVNULL
        )
        os.close(to_child)
        os.close(from_child)
        self._number, self._buffer, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait(self, event: str) -> None:
        while not any(e.get("method") == event for e in self.events):
            self.events.append(self._next())

    def evaluate(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(timeout=20)
        os.close(self._read)
        os.close(self._write)


def check(report: Path, program: str, shots: Path | None) -> list[str]:
    """Every fault found, as a sentence."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(program, profile)
        try:
            url = report.resolve().as_uri()
            browser.events.clear()
            browser.call("Page.navigate", url=url)
            browser.wait("Page.loadEventFired")
            papers = []
            for scheme in ("light", "dark"):
                browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                for width in (1200, 400):
                    browser.call(
                        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
                    )
                    found = browser.evaluate(STRUCTURE)
                    faults += [f"{scheme} {width}: id {i} is used twice" for i in found["twice"]]
                    faults += [f"{scheme} {width}: no name on {e}" for e in found["nameless"]]
                    if found["overflow"] > 0:
                        faults.append(f"{scheme} {width}: the page is {found['overflow']} px wider than the window")
                    if shots is not None:
                        _shoot(browser, shots / f"{report.parent.name}-{scheme}-{width}.png")
                papers.append(found["paper"])
                faults += [f"{scheme}: contrast {ratio} of {text!r}" for text, ratio in browser.evaluate(CONTRAST)]
            if papers[0] == papers[1]:
                faults.append(f"light and dark have the same paper: {papers[0]}")
            if found["headings"][0] != 1 or any(
                b - a > 1 for a, b in zip(found["headings"], found["headings"][1:], strict=False)
            ):
                faults.append(f"heading levels skip: {found['headings']}")
            faults += _keyboard(browser, found["stops"])
            faults += _network(browser, url)
        finally:
            browser.close()
    return faults


def _keyboard(browser: Browser, stops: int) -> list[str]:
    """Tab from the top: as many stops as there are, each with a visible focus."""
    reached = 0
    for _ in range(stops + 2):  # the browser's own frame can be a stop, too
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        tag, again, visible = browser.evaluate(FOCUSED)
        if tag != "BODY" and not again:
            reached += 1
            if not visible:
                return [f"the focus on {tag} cannot be seen"]
    return [] if reached == stops else [f"Tab reaches {reached} of {stops} stops"]


def _network(browser: Browser, url: str) -> list[str]:
    faults = []
    for event in browser.events:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent" and params["request"]["url"] != url:
            faults.append(f"requested {params['request']['url']}")
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            faults.append(f"console: {json.dumps(params)[:200]}")
    return faults


def _shoot(browser: Browser, path: Path) -> None:
    picture = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(picture))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, nargs="+")
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--browser")
    options = parser.parse_args()
    names = ("chromium", "chromium-browser", "google-chrome")
    program = options.browser or next((p for name in names if (p := shutil.which(name))), None)
    if program is None:
        print("no Chromium found; install one or give --browser PATH", file=sys.stderr)
        return 2
    faults = [f"{report}: {fault}" for report in options.report for fault in check(report, program, options.shots)]
    print("\n".join(faults) if faults else f"{len(options.report)} report(s): no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
