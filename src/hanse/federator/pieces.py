"""Runs without some of their publications: pieces whose ids stay those of their publications.

QoS 2 relies on the id: otherwise the journal and the ring would name one publication and mean another.
"""

from collections.abc import Iterable

from hanse.protocol.messages import Run
from hanse.protocol.packets import split


def singles(run: Run) -> list[Run]:
    """Return a run for each publication."""
    return [
        run._replace(first=run.first + offset, length=1, body=run.body[start:end])
        for offset, (start, end) in enumerate(split(run.body))
    ]


def joined(pieces: Iterable[Run]) -> list[Run]:
    """Return the rest of one run, in order, in as few runs as possible."""
    found: list[tuple[Run, list[bytes], int]] = []
    for piece in pieces:
        if found and found[-1][0].first + found[-1][2] == piece.first:
            former, bodies, length = found[-1]
            bodies.append(piece.body)
            found[-1] = (former, bodies, length + piece.length)
        else:
            found.append((piece, [piece.body], piece.length))
    return [run._replace(length=length, body=b"".join(bodies)) for run, bodies, length in found]
