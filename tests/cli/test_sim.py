"""`hanse sim`: its output and its exit codes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanse.cli import build
from hanse.sim.conversation import ConversationError


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(build(["sim"]), ["sim", *words])
    assert result.exit_code == code, result.output
    return result.output


def test_run_prints_json_with_the_promised_keys() -> None:
    body = json.loads(call("run", "--brokers", "30", "--groups", "2", "--seed", "3", "--json"))
    assert body["converged"] is True
    assert body["links"] == 75
    for key in ("announcements_per_round", "frames_per_round", "control_bytes_per_round", "seconds", "rss_bytes"):
        assert body[key] > 0
    assert len(body["trace_hash"]) == 32
    assert body["rounds"] >= 1


def test_run_prints_a_sentence() -> None:
    text = call("run", "--brokers", "5", "--overlay", "ring", "--latency-ms", "5..100")
    assert text.startswith("5 brokers, 5 links, 1 groups on 1 cores converged after ")


def test_seeds_prints_its_counts() -> None:
    body = json.loads(call("seeds", "--count", "1", "--first", "5", "--brokers", "4", "--processes", "1", "--json"))
    assert body["failed"] == []
    assert body["published"] >= 1_000
    assert body["eligible"] > 0
    assert sum(body["faults"].values()) >= 5
    assert body["seeds"][0]["trace_hash"]
    text = call("seeds", "--count", "1", "--first", "5", "--brokers", "4", "--processes", "1")
    assert "seed 5: " in text
    assert "1 of 1 seeds kept every promise" in text


def test_failed_seeds_are_printed_with_the_command_to_reproduce_them() -> None:
    text = call("seeds", "--count", "1", "--first", "2", "--brokers", "1", "--no-faults", code=1)
    assert "seed 2: The run proves nothing" in text
    assert "reproduce: hanse sim seeds --first 2 --count 1 --brokers 1 --no-faults" in text


def test_play_runs_a_conversation_and_reports_the_failing_line(tmp_path: Path) -> None:
    file = tmp_path / "talk.txt"
    file.write_text("brokers 0..1\nlink 0-1\nsubscribe 1 a\nsettle\nexpect core a = 1\n")
    assert "as expected" in call("play", str(file))
    file.write_text(file.read_text() + "expect core a = 0\n")
    with pytest.raises(ConversationError, match="line 6"):
        CliRunner().invoke(build(["sim"]), ["sim", "play", str(file)], catch_exceptions=False)
