"""Golden conversations: every file plays, and an error in one names the file and the line."""

from pathlib import Path

import pytest

from hanse.sim.conversation import ConversationError, play

FILES = sorted((Path(__file__).parent.parent / "conversations").glob("*.txt"))
SMALL = "brokers 0..2\nlink 0-1 1-2\nsubscribe 2 a\nsettle\n"


def test_there_are_conversations() -> None:
    assert len(FILES) >= 9


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_conversation(file: Path) -> None:
    play(file.read_text(), file.name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + "expect core a = 1", r"talk, line 5: expected core a = 1, but it is 2\."),
        (SMALL + "expect parents 0 a = 2", "line 5: expected parents 0 a = 2, but it is 1"),
        (SMALL + "expect distance 0 a = 7", "but it is 2"),
        (SMALL + "expect members a = 0", "but it is 2"),
        (SMALL + "expect mesh-links a = 0-1", "but it is -"),
        (SMALL + "expect host-subscriptions 0 = -", "but it is a"),
        (SMALL + "publish 0 a x\nrun 1A\nexpect delivered 1", "line 7: expected delivered 1, but it is 2"),
        (SMALL + "publish 0 a x\nrun 1A\nexpect path 0-1", "but it is 0-1 1-2"),
        (SMALL + "publish 0 a x\nrun 1A\nexpect enters 2 before 1", "but it is 1 before 2"),
        (SMALL + "stream 0 a 10ms\nrun 1A\ncut 0-1\nrun 1A\nexpect stream lossless 2", "lossless but"),
        (SMALL + "expect epoch 1 = grown", "has not been stopped yet"),
        (SMALL + "crash 1\nrestart 1\nsettle\nexpect epoch 1 = same", "but it is grown"),
        (SMALL + "expect delivered 1", "nothing has been published yet"),
        (SMALL + "crash 1\nexpect parents 1 a = 2", "federator 1 is down"),
        (SMALL + "expect counter 0 nonsense = 3", "but it is 0"),
        (SMALL + "cut 0-1\nexpect quiet 2", "not quiet"),
        (SMALL + "expect luck", "`expect luck` is unknown; expected one of core, parents"),
        (SMALL + "redundancy 2", "must stand before the federators start"),
        (SMALL + "dance", "the command 'dance' is unknown"),
        (SMALL + "run 3", "expected one such as 200ms"),
        (SMALL + "subscribe 9 a", "line 5: 'subscribe 9 a': 9"),
        (SMALL + "subscribe x a", "line 5: 'subscribe x a': invalid literal"),
        ("link 0-1\nstart", "there are no brokers yet"),
        ("brokers 0..2", "nothing happens"),
        ("brokers 0..9999", "expected 1 to 1000"),
        ("brokers 0..1\nlink 0-1\nredundancy 0\nsettle", "redundancy is 0"),
        ("brokers 0..1\nlink 0-1\nsubscribe 0 a\nsettle 0.001A", "not settled after 0.001 A"),
        ("#\n" * 10_001, "at most 10000"),
    ],
)
def test_an_error_names_the_line_and_what_was_seen(text: str, message: str) -> None:
    with pytest.raises(ConversationError, match=message):
        play(text, "talk")
