"""Output of `hanse trace` and `hanse account` for pages from a small server; live tests use real pages."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hanse.cli import build
from hanse.errors import HanseError, LocalError, RemoteError, Unavailable
from hanse.local import ports

NOW_US = 1_700_000_000_000_000


class Pages:
    """Servers that answer every request with a document; `asked` holds the posted questions."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._servers: list[http.server.HTTPServer] = []

    def serve(self, *documents: object) -> str:
        """Start a server for the documents in order, the last one repeatedly; return its URL."""
        left, asked = list(documents), self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self._answer()

            def _answer(self) -> None:
                body = json.dumps(left.pop(0) if len(left) > 1 else left[0]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages()
    yield made
    made.stop()


def run(*words: str) -> Result:
    return CliRunner().invoke(build(words), list(words), env={"COLUMNS": "150", "TERM": "dumb"})


def refusal(*words: str) -> HanseError:
    error = run(*words).exception
    assert isinstance(error, HanseError), error
    return error


# --- trace ------------------------------------------------------------------------------------------------------------


def hop(federator: int, previous: int | None, at_ms: float, **more: Any) -> dict[str, Any]:
    at_us = NOW_US + round(at_ms * 1e3)
    found = {"federator": federator, "previous": previous, "arrived_us": at_us, "left_us": at_us + 100}
    return {**found, "delivered": [], "forwarded": [], "ends": [], "path": [], **more}


def end(reason: str, words: str, **more: Any) -> dict[str, Any]:
    return {"reason": reason, "words": words, "groups": [], "neighbour": None, "detail": "", **more}


def to(*neighbours: int) -> list[dict[str, Any]]:
    return [{"neighbour": neighbour, "groups": ["a/#"]} for neighbour in neighbours]


def answer(*hops: dict[str, Any], **more: Any) -> dict[str, Any]:
    at = sorted({hop["federator"] for hop in hops if hop["delivered"]})
    found = {"topic": "a/[b]", "at": 0, "started_us": NOW_US, "delivered_at": at, "reason": None, "words": ""}
    return {**found, "hops": list(hops), "remarks": [], **more}


def test_a_ring_is_drawn_as_a_tree_in_which_the_duplicate_ends(pages: Pages) -> None:
    twice = [end("duplicate", "it arrived by another route before", groups=["a/#"])]
    url = pages.serve(
        answer(
            hop(0, None, 0, forwarded=to(1, 2)),
            hop(1, 0, 1.5, forwarded=to(2)),
            hop(2, 0, 2.5, delivered=["a/#"], forwarded=to(1)),
            hop(2, 1, 3.5, ends=twice),
            hop(1, 2, 4.5, ends=twice),
        )
    )
    done = run("trace", "a/[b]", "--metrics", url + "/")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "a/[b] at 0",
        "├── 1  +1.4 ms  (1.5 ms in all)  for a/#",
        "│   └── 2  +1.9 ms  (3.5 ms in all)  for a/#",
        "│       └── it arrived by another route before, for a/#",
        "└── 2  +2.4 ms  (2.5 ms in all)  for a/#",
        "    ├── delivered here, for a/#",
        "    └── 1  +1.9 ms  (4.5 ms in all)  for a/#",
        "        └── it arrived by another route before, for a/#",
        "delivered at 2",
    ]
    assert pages.asked == [{"topic": "a/[b]", "wait_ms": 2000.0}]


def test_if_nothing_arrives_the_reason_and_the_remarks_are_printed(pages: Pages) -> None:
    lost = end("link_down", "the link is down", neighbour=2, groups=["a/#"], detail="for [long]")
    remark = hop(1, None, 5, ends=[lost])
    nobody = end("no_interest", "nobody elsewhere is interested")
    found = answer(hop(0, None, 0, ends=[nobody]), reason="link_down", words="the link is down", remarks=[remark])
    done = run("trace", "a/[b]", "--metrics", pages.serve(found))
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "a/[b] at 0",
        "└── nobody elsewhere is interested",
        "1 reports: the link is down (1 to 2), for a/#: for [long]",
        "delivered nowhere: the link is down",
    ]


def test_json_is_printed_unchanged(pages: Pages) -> None:
    found = answer(hop(0, None, 0))
    done = run("trace", "a", "--metrics", pages.serve(found), "--json", "--wait", "0.5")
    assert (done.exit_code, json.loads(done.output)) == (1, found)
    assert pages.asked == [{"topic": "a", "wait_ms": 500.0}]


def test_the_federator_must_be_given_once_and_exist(pages: Pages, tmp_path: Path) -> None:
    assert isinstance(refusal("trace", "a", "--at", "0", "--metrics", "http://127.0.0.1:1"), LocalError)
    assert "There is no state file" in str(refusal("trace", "a", "--state", str(tmp_path / "none")))
    row = {"id": 0, "broker": "mqtt://x", "link": None, "metrics": None, "broker_pid": None, "federator_pid": 1}
    (tmp_path / "state.json").write_text(json.dumps({"federators": [row]}))
    path = str(tmp_path / "state.json")
    assert "serves no metrics" in str(refusal("trace", "a", "--state", path))
    assert "numbered 0 to 0" in str(refusal("trace", "a", "--state", path, "--at", "1"))
    assert "No federator in this state file" in str(refusal("account", "--state", path))
    for command in (["trace", "a", "--metrics"], ["account", "--metrics"], ["wait", "--metrics"]):
        assert "write http://HOST:PORT" in str(refusal(*command, "mqtt://127.0.0.1:1"))
        assert "these pages are plain" in str(refusal(*command, "https://127.0.0.1:1"))
    assert "write http://HOST:PORT" in str(refusal("gateway", "explain", "--client", "x", "--url", "ftp://h:1"))
    missing = str(refusal("gateway", "explain", "--client", "x", "--state-dir", str(tmp_path / "none")))
    assert "(No such file or directory)" in missing
    error = refusal("trace", "a", "--metrics", pages.serve({"error": "8 traces are under way here"}))
    assert isinstance(error, RemoteError)
    assert "8 traces" in str(error)


# --- account ----------------------------------------------------------------------------------------------------------


def page(federator: int, *accounts: list[Any], **more: Any) -> dict[str, Any]:
    times = {"started_us": NOW_US, "at_us": NOW_US + 9_000_000}
    found = {"id": federator, "epoch": 1, **times, "left_off": 0, "interest": [], "waiting": []}
    return {**found, "accounts": list(accounts), **more}


def row(measure: str, count: int, neighbour: int | None = None) -> list[Any]:
    return [measure, 0, 1, ["a/[b]"], neighbour, count, 10, NOW_US + 1_000_000]


ORIGIN = page(0, row("published", 5), row("forwarded", 5, 1))
INTEREST = [["a/[b]", NOW_US]]


def test_a_balance_without_a_gap_gives_exit_code_0(pages: Pages) -> None:
    there = page(1, row("received", 5, 0), row("delivered", 5), row("duplicate", 2), interest=INTEREST)
    done = run("account", "--metrics", pages.serve(ORIGIN), "--metrics", pages.serve(there))
    assert done.exit_code == 0
    lines = [line.split() for line in done.output.splitlines()]
    assert ["0", "a/[b]", "5", "1", "5", "2", "0", "0"] in lines
    assert ["0", "to", "1", "5", "5", "0"] in lines
    assert lines[-1] == ["unexplained:", "0"]


def test_a_long_group_is_whole_at_80_columns(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    group = "plant/+/" + "machine/" * 12 + "temperature"
    origin = page(0, [*row("published", 5)[:3], [group], *row("published", 5)[4:]])
    there = page(1, interest=[[group, NOW_US]])
    done = run("account", "--metrics", pages.serve(origin), "--metrics", pages.serve(there))
    assert f"origin 0, group {group}: 5 published\n" in done.output
    assert "…" not in done.output
    assert all(head in done.output for head in ("delivered", "duplicates", "dropped", "missing", "unexplained"))


def test_unexplained_losses_give_exit_code_1(pages: Pages) -> None:
    there = page(1, row("received", 5, 0), row("delivered", 2), row("dropped:import", 1), interest=INTEREST)
    urls = ("--metrics", pages.serve(ORIGIN), "--metrics", pages.serve(there))
    done = run("account", *urls)
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == "unexplained: 2"
    assert "import 1" in done.output
    document = json.loads(run("account", *urls, "--json").output)
    assert (document["unexplained"], document["is_at_rest"], document["silent"]) == (2, True, [])


def test_losses_in_transit_silent_federators_and_omissions_are_reported(pages: Pages) -> None:
    origin = page(0, row("published", 5), row("forwarded", 5, 1), waiting=[[0, 1, ["a/[b]"], 1, 10]], left_off=3)
    there = page(1, row("received", 2, 0), row("delivered", 2), interest=INTEREST)
    away = f"http://127.0.0.1:{ports.free(1)[0]}"
    done = run("account", "--metrics", pages.serve(origin), "--metrics", pages.serve(there), "--metrics", away)
    assert done.exit_code == 0
    assert "in transit: link 0 to 1 3, waiting 1" in done.output
    assert f"{away} does not answer" in done.output
    assert "3 accounts were omitted" in done.output


def test_ongoing_traffic_is_reported(pages: Pages) -> None:
    going = [page(0, row("published", count)) for count in range(1, 50)]
    done = run("account", "--metrics", pages.serve(*going), "--wait", "0")
    assert "There is still traffic" in done.output


def test_invalid_repeated_or_missing_pages_are_refused(pages: Pages) -> None:
    url = pages.serve(ORIGIN)
    assert "same federator" in str(refusal("account", "--metrics", url, "--metrics", url))
    bare = url.removeprefix("http://")
    assert "same federator" in str(refusal("account", "--metrics", bare, "--metrics", url + "/")), "HOST:PORT is a URL"
    assert isinstance(refusal("account", "--metrics", pages.serve({})), RemoteError)
    away = f"http://127.0.0.1:{ports.free(1)[0]}"
    assert isinstance(refusal("account", "--metrics", away), Unavailable)
