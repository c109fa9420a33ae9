from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs
from pyspark.sql import DataFrame
from tests.pipeline.analytics.attacked import attacked_tables

from hanse.pipeline import report
from hanse.pipeline.report import write_report
from hanse.pipeline.schemas.catalog import TABLES

pytestmark = pytest.mark.spark

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Elements(HTMLParser):
    """Parser that collects a page's elements, addresses and event handlers, and its text outside scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._is_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._is_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False if tag == "script" else self._is_script

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts.append(data)
        else:
            self.text += data


@pytest.fixture(scope="module")
def evil_page(make: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a report on tables in which every text is an attack."""
    path = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    write_report(attacked_tables(make, EVIL), path, title=EVIL, now=NOW)
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_attack_script_in_every_text_is_shown_as_text(evil_page: str) -> None:
    page = Elements(evil_page)
    assert EVIL not in evil_page.replace(get_plotlyjs(), "")
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(EVIL) > 10
    # No table text may close or open a script; the remaining plot data is escaped twice.
    own = [script for script in page.scripts if "Plotly.newPlot" in script and len(script) < 1_000_000]
    assert own
    assert all("alert(1)" not in script or "<script" not in script for script in own)


def test_the_page_loads_nothing_from_elsewhere(evil_page: str) -> None:
    page = Elements(evil_page)
    addresses = [value for name, value in page.attributes if name in {"src", "href", "action"}]
    assert addresses == []
    assert "default-src 'none'" in evil_page
    assert "Made 2026-01-02 00:00" in page.text


@pytest.mark.slow
def test_a_report_without_data_says_so(make: Any, tmp_path: Path) -> None:
    write_report(lambda name: make(TABLES[name], TABLES[name].names[0]), tmp_path / "empty.html", now=NOW)
    page = Elements((tmp_path / "empty.html").read_text(encoding="utf-8"))
    for heading in (
        "Latency by path",
        "Traffic matrix",
        "Delivery and loss",
        "Topology",
        "Anomalies",
        "Quarantine",
    ):
        assert heading in page.text
    assert "Nothing to show yet." in page.text
    assert "None." in page.text


@pytest.mark.slow
def test_figures_are_on_the_page_and_long_tables_are_cut_with_a_note(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "ROWS_MAX", 2)
    rows = {
        "gold_delivery": [
            ("window_start origin destination group expected_total delivered_total lost_total delivery_ratio"),
            (0, "1", "2", "a", 50, 50, 0, 1.0),
            (60, "1", "2", "a", 100, 99, 1, 0.99),
            (60, "1", "3", "a", 100, 110, 0, 1.0),
        ],
        "gold_anomalies": [
            "window_start element name measure value baseline spread score direction",
            *[(60, "broker", str(i), "reports", 0.0, 12.0, 1.2, -10.0, "low") for i in range(5)],
        ],
    }

    def read(name: str) -> DataFrame:
        header, *lines = rows.get(name, [TABLES[name].names[0]])
        frame: DataFrame = make(TABLES[name], header, *lines)
        return frame

    write_report(read, tmp_path / "report.html", now=NOW)
    text = Elements((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "99.5000%" in text  # 99 and 100 of 200: deliveries beyond the expected ones do not raise the ratio
    assert "Only the first 2 rows are shown." in text
