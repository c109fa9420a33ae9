"""The verdict about a broker, without IO: up, refused, or hung.

A client's connection that ends says nothing about its broker: the broker may have ended that one client. So the
verdict rests on the gateway's own session at the broker, and on the bytes that any client's session receives.

Rules:

1. A health session that is refused, or reset and then refused, is a verdict at once: `refused`.
2. A health session that is reset and accepted again means that the broker restarted. Its clients' sessions are gone,
   so the incarnation grows.
3. An answer that is missing for `timeout_s` makes a broker suspect, unless a client's session has received something
   from it in that time. A suspect is `hung`, unless more than half of all brokers are suspect: then the fault is
   probably at this end, and nobody is moved.
4. A broker that was down is up again after `RISE` answers in a row.
"""

from collections.abc import Iterable
from typing import Final

from hanse.gateway.brokers.directory import HUNG, REFUSED, UP

# A broker that accepts one connection between two crashes is not up.
RISE: Final = 2
# The weight of the newest round trip in the average.
_NEWEST: Final = 0.2


class Health:
    """Known health of one broker.

    Attributes:
        verdict: `up`, `refused` or `hung`.
        incarnation: grows when the broker restarted or was judged down: sessions of an older one are gone.
        rtt_s: average round trip; None before the first answer.
    """

    __slots__ = ("_answers", "_asked_at", "_heard_at", "detail", "incarnation", "rtt_s", "verdict")

    def __init__(self) -> None:
        self.verdict = UP
        self.detail = ""
        self.incarnation = 0
        self.rtt_s: float | None = None
        self._answers = 0
        self._asked_at: float | None = None
        self._heard_at = float("-inf")

    def asked(self, now: float) -> None:
        """Note that a question is on its way; the oldest one without an answer counts."""
        if self._asked_at is None:
            self._asked_at = now

    def answered(self, now: float) -> bool:
        """Note an answer of the broker; return whether the verdict changed."""
        if self._asked_at is not None:
            rtt_s = now - self._asked_at
            self.rtt_s = rtt_s if self.rtt_s is None else self.rtt_s + _NEWEST * (rtt_s - self.rtt_s)
        self._asked_at = None
        self._heard_at = now
        self._answers += 1
        if self.verdict == UP or self._answers < RISE:
            return False
        self.verdict = UP
        self.detail = ""
        return True

    def heard(self, at: float) -> None:
        """Note when a client's session last received anything from this broker."""
        self._heard_at = max(self._heard_at, at)

    def restarted(self) -> None:
        """Note that the health session was reset and accepted again (rule 2)."""
        self.incarnation += 1

    def refused(self, detail: str) -> bool:
        """Note that the health session was refused (rule 1); return whether the verdict changed."""
        self._asked_at = None
        self._answers = 0
        return self._down(REFUSED, detail)

    def is_suspect(self, now: float, timeout_s: float) -> bool:
        """Return whether an answer is missing for too long (rule 3)."""
        return self._asked_at is not None and now - max(self._asked_at, self._heard_at) > timeout_s

    def hung(self, timeout_s: float) -> bool:
        """Take over that a suspect is hung; return whether the verdict changed."""
        self._answers = 0
        return self._down(HUNG, f"no MQTT answer and no bytes for {timeout_s:g} s")

    def _down(self, verdict: str, detail: str) -> bool:
        if self.verdict != UP:
            return False
        self.verdict = verdict
        self.detail = detail
        self.incarnation += 1
        return True


def suspects_to_judge(brokers: Iterable[tuple[str, Health]], now: float, timeout_s: float) -> tuple[list[str], bool]:
    """Return the ids of the brokers that are hung now, and whether that was doubted (rule 3)."""
    known = list(brokers)
    suspects = [broker_id for broker_id, health in known if health.is_suspect(now, timeout_s)]
    # Those already judged hung count as suspect as well, because they make this end doubtful.
    if 2 * len(suspects) > len(known):
        return [], any(health.verdict == UP for broker_id, health in known if broker_id in suspects)
    by_id = dict(known)
    return [broker_id for broker_id in suspects if by_id[broker_id].verdict == UP], False
