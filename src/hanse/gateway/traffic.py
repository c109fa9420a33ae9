"""Counters of one worker, in addition to those of its sessions."""

from typing import Any

from hanse.gateway.session import Counters


class Traffic:
    """Plain numbers, which the metrics page reads.

    Attributes:
        connections: connections that were accepted.
        clients: connections that are open now.
        accepted: clients whose CONNECT a broker accepted.
        refused: connections that got no session, by reason.
        moved: clients that were attached to another broker, by reason.
        broker_failures: failed connections to brokers.
        late: connections that were cut off because they did not accept what was written to them.
        wills: outcomes of the wills of clients that are gone.
        redirects: redirects, by packet and code.
        proxied: clients of redirecting listeners that were proxied, by reason.
        redirect_checks: checks of credentials at brokers.
        redirect_lost: publications of QoS 0 that came from clients while they were redirected.
        federators: reports of interest to federators, and barriers of SUBACKs.
        shares: members of share groups, and outcomes of their messages.
    """

    def __init__(self) -> None:
        self.sessions = Counters()
        self.connections = 0
        self.clients = 0
        self.accepted = 0
        self.broker_failures = 0
        self.late = 0
        self.refused: dict[str, int] = {}
        self.moved: dict[str, int] = {}
        self.wills: dict[str, int] = {}
        self.at_brokers: dict[str, int] = {}
        self.redirects: dict[str, int] = {}
        self.proxied: dict[str, int] = {}
        self.redirect_checks = 0
        self.redirect_lost = 0
        self.federators: dict[str, int] = {}
        self.shares: dict[str, int] = {}

    def refuse(self, reason: str) -> None:
        """Count a connection that got no session."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def move(self, reason: str) -> None:
        """Count a client that is attached to another broker."""
        self.moved[reason] = self.moved.get(reason, 0) + 1

    def as_dict(self) -> dict[str, Any]:
        """Return everything, as JSON can carry it."""
        sessions = self.sessions
        return {
            "connections": self.connections,
            "clients": self.clients,
            "accepted": self.accepted,
            "broker_failures": self.broker_failures,
            "late": self.late,
            "refused": dict(self.refused),
            "moved": dict(self.moved),
            "wills": dict(self.wills),
            "at_brokers": dict(self.at_brokers),
            "redirects": dict(self.redirects),
            "proxied": dict(self.proxied),
            "redirect_checks": self.redirect_checks,
            "redirect_lost": self.redirect_lost,
            "federators": dict(self.federators),
            "shares": dict(self.shares),
            "messages": {"in": sessions.from_clients, "out": sessions.to_clients},
            "drops": dict(sessions.drops),
            "closes": dict(sessions.closes),
            "moves": dict(sessions.moves),
        }


def added(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of the counts of several workers."""
    total: dict[str, Any] = Traffic().as_dict()
    for part in parts:
        for name, value in part.items():
            if isinstance(value, dict):
                counts = total.setdefault(name, {})
                for key, count in value.items():
                    counts[key] = counts.get(key, 0) + count
            else:
                total[name] = total.get(name, 0) + value
    return total
