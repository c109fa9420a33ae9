"""Runs of which some publications are left out: pieces whose ids stay those of their publications.

QoS 2 goes by the id: the journal and the ring would otherwise name one publication and mean another.
"""

from collections.abc import Iterable

from hanse.protocol.messages import Run
from hanse.protocol.packets import split


def singles(run: Run) -> list[Run]:
    """A run for each publication."""
    return [
        run._replace(first=run.first + offset, length=1, body=run.body[start:end])
        for offset, (start, end) in enumerate(split(run.body))
    ]


def joined(pieces: Iterable[Run]) -> list[Run]:
    """What is left of one run, in its order, in as few runs as possible."""
    found: list[tuple[Run, list[bytes], int]] = []
    for piece in pieces:
        if found and found[-1][0].first + found[-1][2] == piece.first:
            former, bodies, length = found[-1]
            bodies.append(piece.body)
            found[-1] = (former, bodies, length + piece.length)
        else:
            found.append((piece, [piece.body], piece.length))
    return [run._replace(length=length, body=b"".join(bodies)) for run, bodies, length in found]
