"""Mosquitto's subscription tree, as the broker prints it when it gets SIGUSR2 (2.0 and 2.1).

One line per level of the tree, two spaces further in per level, with the clients that subscribe there and their QoS.
Roots and levels may have no name; such a line consists of spaces only:

    |    |                              ordinary subscriptions begin: a root without a name
    |      |                            all filters that do not begin with `$` share this level
    |        plant|
    |          # (panel 7, 1) (logger, 2)|
    |    $SYS|
    |      $SYS|
    |        # (monitor, 0)|
    |    |                              shared subscriptions begin, without clients and share names

Rules:

1. The tree begins with the first line of exactly four spaces, because no line of the log looks like that. It goes on
   while lines begin with four spaces: the broker prints it in one go.
2. A last line without its end is left out, because more of it may follow.
3. Levels and client ids may contain spaces and parentheses. The leftmost split wins in which no client id contains
   `) (`; otherwise the leftmost one. A line that can be split in several ways is counted.
4. A level of the shared tree is a filter if it has no children. A level with children may be one as well.
"""

import re
from dataclasses import dataclass, field

_INDENT = 4
_BEGIN = b" " * _INDENT
_CLIENTS = re.compile(r" \((.*), ([012])\)", re.DOTALL)
# A client may choose an id with any number of parentheses.
_SPLITS_MAX = 8
_BETWEEN = re.compile(r", ([012])\) \(")


@dataclass(slots=True)
class Tree:
    """Content of one tree.

    Attributes:
        subscriptions: client, filter and QoS of each ordinary subscription.
        shared: filters of shared subscriptions, without their share names.
        shared_perhaps: filters that may be those of further shared subscriptions.
        ambiguous: number of lines that can be split in several ways.
        is_whole: whether all ordinary subscriptions are there.
        is_ended: whether other output follows the tree.
    """

    subscriptions: list[tuple[str, str, int]] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)
    shared_perhaps: set[str] = field(default_factory=set)
    ambiguous: int = 0
    is_whole: bool = False
    is_ended: bool = False


def parse(output: bytes) -> Tree | None:
    """Return the first tree in a broker's output; None if none has begun."""
    lines = output.split(b"\n")
    lines.pop()  # rule 2
    if _BEGIN not in lines:
        return None
    tree = Tree()
    roots_without_name = 0
    # Levels from the root to the line before.
    path: list[str] = []
    for line in lines[lines.index(_BEGIN) :]:
        if not line.startswith(_BEGIN):
            tree.is_ended = True
            break
        text = line.decode(errors="replace")
        depth = min((len(text) - len(text.lstrip(" ")) - _INDENT) // 2, len(path))
        text = text[_INDENT + 2 * depth :]
        if depth == 0 and not text:
            roots_without_name += 1
            tree.is_whole = roots_without_name > 1
        if tree.is_whole:
            _enter_shared(tree, path, depth, text)
        else:
            _enter(tree, path, depth, text)
    if tree.is_whole and (filter_ := _filter(path)):
        tree.shared.add(filter_)
    return tree


def _enter(tree: Tree, path: list[str], depth: int, text: str) -> None:
    level, clients, is_ambiguous = _split(text)
    tree.ambiguous += is_ambiguous
    path[depth:] = [level]
    filter_ = _filter(path)
    if filter_:
        tree.subscriptions += [(client, filter_, qos) for client, qos in clients]


def _enter_shared(tree: Tree, path: list[str], depth: int, text: str) -> None:
    if before := _filter(path):
        # The line before is known to be a leaf only now (rule 4).
        (tree.shared if depth < len(path) else tree.shared_perhaps).add(before)
    path[depth:] = [text]
    if depth == 0 and not text:
        tree.shared.clear()
        tree.shared_perhaps.clear()


def _filter(path: list[str]) -> str:
    """Return the filter of a path; an empty text for the roots."""
    return "/".join(path[1:] if path and path[0] else path[2:])


def _split(text: str) -> tuple[str, list[tuple[str, int]], bool]:
    """Split a line into its level and its clients; also return whether there was another way (rule 3)."""
    if not text.endswith(")"):
        return text, [], False
    found: list[tuple[str, list[tuple[str, int]]]] = []
    at = text.find(" (")
    for _ in range(_SPLITS_MAX):
        # Behind a client there is another one, which is no split unless nothing was found before.
        if at < 0 or (found and text[at - 1] == ")"):
            break
        if match := _CLIENTS.fullmatch(text, at):
            # Client, QoS, client, QoS, ..., client.
            parts = [*_BETWEEN.split(match[1]), match[2]]
            found.append((text[:at], [(parts[k], int(parts[k + 1])) for k in range(0, len(parts), 2)]))
        at = text.find(" (", at + 1)
    if not found:
        return text, [], False
    plain = [split for split in found if not any(") (" in client for client, _ in split[1])]
    level, clients = (plain or found)[0]
    return level, clients, len(found) > 1
