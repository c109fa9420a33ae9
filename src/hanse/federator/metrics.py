"""Metrics of a federator for Prometheus. Batches add numbers; names are looked up at a scrape.

One naming scheme for all of Hanse: `hanse_<service>_<name>`; labels are bounded by `telemetry.prometheus`.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from hanse.mqtt.certificates import expires_at_s
from hanse.telemetry.process import add_process_metrics
from hanse.telemetry.prometheus import Registry


class LinkTraffic:
    """One link in one direction: messages by QoS, frames and bytes of data and of control."""

    __slots__ = ("bytes", "control_bytes", "control_frames", "dropped_frames", "frames", "messages")

    def __init__(self) -> None:
        self.messages = [0, 0, 0]
        self.frames = self.bytes = 0
        self.control_frames = self.control_bytes = 0
        self.dropped_frames = 0


class AgentMetrics:
    """The registry of one federator.

    Args:
        protocol: counters of the machine.
        agent: counters of the agent.
        drops: function that returns drops by reason, called at the scrape.
        properties_lost: function that returns the publications without their properties, called at the scrape.
        security: counts of security events, by name.
        gauges: functions that return the values, by name.
        certificates: PEM file of this federator's certificate, by its use.
    """

    def __init__(
        self,
        *,
        protocol: Mapping[str, int],
        agent: Mapping[str, int],
        emitted: Mapping[str, int],
        drops: Callable[[], Mapping[str, int]],
        properties_lost: Callable[[], int] = int,
        security: Mapping[str, int] = MappingProxyType({}),
        gauges: Mapping[str, tuple[str, Callable[[], float]]],
        certificates: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self._protocol = protocol
        self._agent = agent
        self._emitted = emitted
        self._security = security
        self._drops = drops
        self._properties_lost = properties_lost
        # Counts by neighbour.
        self.sent: defaultdict[int, LinkTraffic] = defaultdict(LinkTraffic)
        self.received: defaultdict[int, LinkTraffic] = defaultdict(LinkTraffic)
        registry = self._registry = Registry("federator")
        add_process_metrics(registry, "federator")
        links = ("link", "direction")
        self._messages = registry.counters("link_messages_total", "Publications on links.", labels=(*links, "qos"))
        self._bytes = registry.counters("link_bytes_total", "Bytes of data frames on links.", labels=links)
        self._control = registry.counters("link_control_bytes_total", "Bytes of control frames.", labels=links)
        self._counted = registry.counters("protocol_total", "Counters of the protocol.", labels=("what",))
        self._own = registry.counters("agent_total", "Counters of the agent.", labels=("what",))
        self._events = registry.counters("events_total", "Events of the protocol.", labels=("event",))
        self._refused = registry.counters(
            "security_events_total", "Peers that got no link, by the event that the log names.", labels=("event",)
        )
        self._dropped = registry.counters("dropped_total", "Dropped publications.", labels=("reason",))
        self._lost = registry.counters(
            "host_properties_lost_total",
            "Publications that the host broker, which speaks MQTT 3.1.1, got without their properties.",
        ).labels()
        self.hop = registry.histogram(
            "hop_seconds", "Time from a batch's arrival here to its hand-over to the next hop."
        )
        self._certificates = certificates
        self._expiry = registry.gauges(
            "certificate_expiry_timestamp_seconds", "Expiry of the certificate, since 1970.", labels=("use",)
        )
        self._gauges = [(registry.gauge(name, words), read) for name, (words, read) in gauges.items()]
        registry.at_scrape(self._fetch)

    def links(self) -> dict[int, tuple[LinkTraffic, LinkTraffic]]:
        """Return outgoing and incoming traffic by neighbour."""
        return {n: (self.sent[n], self.received[n]) for n in self.sent.keys() | self.received.keys()}

    def render(self) -> str:
        """Return the page."""
        return self._registry.render()

    def _fetch(self) -> None:
        for direction, links in (("out", self.sent), ("in", self.received)):
            for neighbour, traffic in links.items():
                for qos, count in enumerate(traffic.messages):
                    self._messages.labels(neighbour, direction, qos).set(count)
                self._bytes.labels(neighbour, direction).set(traffic.bytes)
                self._control.labels(neighbour, direction).set(traffic.control_bytes)
        for family, counts in (
            (self._counted, self._protocol),
            (self._own, self._agent),
            (self._events, self._emitted),
            (self._refused, self._security),
        ):
            for name, count in counts.items():
                family.labels(name).set(count)
        for reason, count in self._drops().items():
            self._dropped.labels(reason).set(count)
        self._lost.set(self._properties_lost())
        for use, path in self._certificates.items():
            # A file that is being replaced right now is read at the next scrape.
            with contextlib.suppress(OSError, ValueError):
                expiry_s = expires_at_s(path)
                self._expiry.labels(use).set(expiry_s)
        for gauge, read in self._gauges:
            gauge.set(read())
