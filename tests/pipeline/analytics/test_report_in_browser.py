"""The report in a real browser: it draws, runs only its own scripts, logs no error and requests nothing."""

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.analytics.attacked import attacked_tables

from hanse.pipeline.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="There is no chromium in the PATH; install it to open the report."),
]

# Each of these would mark the page and write to the console if it ran.
RAN = "document.documentElement.setAttribute('data-ran','yes');console.error('ran')"
LOCAL = ("file:", "data:", "blob:", "chrome:")
EVIL = f'</script><script>{RAN}</script><img src=x onerror="{RAN}">'


class Page(HTMLParser):
    """Parser for the page after all scripts have run: its elements and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._is_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._is_script = tag in {"script", "style"}

    def handle_endtag(self, tag: str) -> None:
        self._is_script = self._is_script and tag not in {"script", "style"}

    def handle_data(self, data: str) -> None:
        if not self._is_script:
            self.text += data

    def count(self, tag: str, class_name: str = "") -> int:
        return sum(one == tag and class_name in (attrs.get("class") or "") for one, attrs in self.elements)


def open_page(path: Path, folder: Path) -> tuple[Page, list[str], list[str]]:
    """Return the page as drawn, the lines of its console, and the addresses that it requested."""
    assert CHROMIUM is not None
    folder.mkdir(exist_ok=True)
    network = folder / "network.json"
    result = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder / 'profile'}"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            # The page must work without a network, and nothing else in the browser may use it either.
            "--host-resolver-rules=MAP * ~NOTFOUND",
            *("--enable-logging=stderr", f"--log-net-log={network}", "--virtual-time-budget=20000", "--dump-dom"),
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    console = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
    events = json.loads(network.read_text(encoding="utf-8", errors="replace"))["events"]
    asked = [one["params"] for one in events if {"url", "initiator"} <= one.get("params", {}).keys()]
    # Requests of the browser itself (time, updates) do not have a page as their origin.
    by_page = {one["url"] for one in asked if one["initiator"] != "not an origin"}
    return Page(result.stdout), console, sorted(one for one in by_page if not one.startswith(LOCAL))


def test_attack_script_in_every_text_runs_nothing_in_a_browser(make: Any, tmp_path: Path) -> None:
    write_report(attacked_tables(make, EVIL), tmp_path / "report.html", title=EVIL)
    page, console, asked = open_page(tmp_path / "report.html", tmp_path)
    assert [attrs for _, attrs in page.elements if "data-ran" in attrs] == []
    assert console == []
    assert asked == []
    assert page.count("img") == 0
    assert page.text.count("<img src=x") > 10
    # It drew its plots, with the attack in their labels.
    assert page.count("svg", "main-svg") >= 3


def test_the_browser_test_detects_an_attack_that_ran(tmp_path: Path) -> None:
    (tmp_path / "open.html").write_text(f"<!doctype html><p>{EVIL.removeprefix('</script>')}", encoding="utf-8")
    (tmp_path / "asking.html").write_text('<img src="http://elsewhere.invalid/x.png">', encoding="utf-8")
    page, console, _ = open_page(tmp_path / "open.html", tmp_path / "first")
    assert any(attrs.get("data-ran") == "yes" for _, attrs in page.elements)
    assert any("ran" in line for line in console)
    _, _, asked = open_page(tmp_path / "asking.html", tmp_path / "second")
    assert asked == ["http://elsewhere.invalid/x.png"]
