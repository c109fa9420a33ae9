"""Parser of Mosquitto's subscription tree: output of a real broker, odd names, and text that breaks off."""

import time

from hypothesis import given
from hypothesis import strategies as st

from hanse.interest.tree import parse

# Printed by Mosquitto 2.0.11.
PRINTED = b"""\
1795060791: Client sp ace: q disconnected.
    \n      \n        a
          b (sp ace: q, 1)
            # (client a, 1) (b (x), 2)
            + (client a, 2)
        \n          x
            \n              y (b (x), 0)
        # (b (x), 1) (sp ace: q, 0)
        +
          a (b (x), 1)
        a b: c (qos: 1)
          d  e (sp ace: q, 1)
    $SYS
      $SYS
        # (sp ace: q, 1)
    \n      \n        a
          b
            #
          c
1795060791: Client s2 closed its connection.
    \n      \n        too late (x, 1)
"""


def test_tree_of_a_real_broker_is_read() -> None:
    tree = parse(PRINTED)
    assert tree is not None
    assert tree.subscriptions == [
        ("sp ace: q", "a/b", 1),
        ("client a", "a/b/#", 1),
        ("b (x)", "a/b/#", 2),
        ("client a", "a/b/+", 2),
        ("b (x)", "/x//y", 0),
        ("b (x)", "#", 1),
        ("sp ace: q", "#", 0),
        ("b (x)", "+/a", 1),
        ("sp ace: q", "a b: c (qos: 1)/d  e", 1),
        ("sp ace: q", "$SYS/#", 1),
    ]
    assert (tree.shared, tree.shared_perhaps) == ({"a/b/#", "a/c"}, {"a", "a/b"})
    assert tree.is_whole
    assert tree.ambiguous == 3


def test_tree_that_breaks_off_is_not_whole() -> None:
    end = PRINTED.index(b"    $SYS") + 3
    tree = parse(PRINTED[:end])
    assert tree is not None
    assert not tree.is_whole
    assert len(tree.subscriptions) == 9
    assert parse(PRINTED[:45]) is None
    assert parse(b"") is None


def printed(clients: dict[str, list[str]]) -> bytes:
    """Print ordinary subscriptions as the broker does."""
    lines = ["    ", "      "]
    filters = sorted({filter_ for held in clients.values() for filter_ in held}, key=lambda text: text.split("/"))
    before: list[str] = []
    for filter_ in filters:
        levels = filter_.split("/")
        same = 0
        while same < min(len(before), len(levels)) and before[same] == levels[same]:
            same += 1
        for depth in range(same, len(levels)):
            at = [client for client, held in clients.items() if "/".join(levels[: depth + 1]) in held]
            lines.append("  " * (depth + 4) + levels[depth] + "".join(f" ({client}, 1)" for client in at))
        before = levels
    return ("\n".join([*lines, "    $SYS", "    ", ""])).encode()


_NAMES = st.text("ab()$ ,1:", min_size=1, max_size=8).filter(lambda text: text.strip() == text)
_SIMPLE = st.text("ab,1:- é", min_size=1, max_size=8).filter(lambda text: text.strip() == text)


@given(st.dictionaries(_SIMPLE, st.lists(st.sampled_from(["a", "a/b", "a//b", "c/+/#", "#", "b c/d"]), max_size=4)))
def test_every_subscription_is_found(clients: dict[str, list[str]]) -> None:
    tree = parse(printed(clients))
    assert tree is not None
    assert sorted(tree.subscriptions) == sorted(
        (client, text, 1) for client, held in clients.items() for text in {*held}
    )


@given(st.dictionaries(_NAMES, st.lists(_NAMES.map(lambda text: "x/" + text), max_size=3), max_size=3))
def test_odd_names_break_nothing(clients: dict[str, list[str]]) -> None:
    tree = parse(printed(clients))
    assert tree is not None
    assert tree.is_whole


def test_line_with_many_clients_or_parentheses_takes_linear_time() -> None:
    many = "        a" + "".join(f" (client {k}, 1)" for k in range(20_000))
    odd = "        b" + " (" * 30_000 + "x, 1)"
    begun = time.perf_counter()
    tree = parse(f"    \n      \n{many}\n{odd}\n".encode())
    assert tree is not None
    assert len(tree.subscriptions) == 20_001
    assert time.perf_counter() - begun < 5
