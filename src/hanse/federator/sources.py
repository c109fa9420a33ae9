"""Interest adapters of one federator behind one interface: their topics and their reports."""

from collections import Counter
from pathlib import Path

from hanse.federator.settings import FederatorSettings
from hanse.interest import (
    AnnounceAdapter,
    BeaconAdapter,
    EmqxAdapter,
    MosquittoFileAdapter,
    MosquittoLogAdapter,
    PollAdapter,
    Report,
    StaticAdapter,
)
from hanse.interest.fetch import ListAddress
from hanse.interest.gateway import GatewayAdapter
from hanse.mqtt.client_ids import prefix_of
from hanse.mqtt.publication import Publication, payload_of
from hanse.protocol.topics import matches

HostAdapter = MosquittoLogAdapter | BeaconAdapter | AnnounceAdapter | EmqxAdapter


class InterestSources:
    """Adapters built from the settings; the agent owns sockets, files and clock."""

    def __init__(self, settings: FederatorSettings) -> None:
        self._host: list[HostAdapter] = []
        self._static: list[StaticAdapter] = []
        # The reader of Mosquitto's log topics, if there is one. It can compare with the broker's counts.
        self.counted: MosquittoLogAdapter | None = None
        # The reader of gateways' reports, if they are a source.
        self.gateway: GatewayAdapter | None = None
        self.files: list[tuple[MosquittoFileAdapter, Path]] = []
        self.polls: list[tuple[PollAdapter, ListAddress]] = []
        own = prefix_of(settings.client_id)
        for choice in settings.adapters():
            match choice.kind:
                case "mosquitto-log":
                    self.counted = MosquittoLogAdapter(own, settings.broker_bridge_topics)
                    self._host.append(self.counted)
                case "beacon":
                    self._host.append(BeaconAdapter(settings.beacon_interval_s, settings.expiry_factor))
                case "announce":
                    self._host.append(AnnounceAdapter())
                case "emqx":
                    self._host.append(EmqxAdapter(own))
                case "poll":
                    self.polls.append((PollAdapter(settings.poll_listing(), own), settings.poll_address()))
                case "gateway":
                    self.gateway = GatewayAdapter()
                case "static":
                    self._static.append(StaticAdapter(settings.static_filters()))
                case "mosquitto-file":
                    assert choice.path is not None, "the settings give a file adapter its path"
                    self.files.append((MosquittoFileAdapter(own), choice.path))
        # Most messages are log lines, of few topics; the filters are compared once for each.
        plain = {topic for adapter in self._host for topic in adapter.topics() if not {"+", "#"} & set(topic)}
        self._by_topic = {topic: self._adapters_of(topic) for topic in plain}

    def topics(self) -> list[str]:
        """Return the topics that the host session needs."""
        return [topic for adapter in self._host for topic in adapter.topics()]

    def start(self) -> list[tuple[str, list[Report]]]:
        """Return the reports that need no input, by source."""
        return [(adapter.source, adapter.start()) for adapter in self._static]

    def hear(self, publication: Publication) -> list[tuple[str, list[Report]]]:
        """Return the reports of one message of the host broker, by source."""
        topic, payload = publication.topic, payload_of(publication.packet)
        heard: list[tuple[str, list[Report]]] = []
        for adapter in self._by_topic.get(topic) or self._adapters_of(topic):
            if isinstance(adapter, BeaconAdapter | MosquittoLogAdapter):
                heard.append((adapter.source, adapter.message(topic, payload, is_retained=publication.retain)))
            else:
                heard.append((adapter.source, adapter.message(topic, payload)))
        return heard

    def counters(self) -> Counter[str]:
        """Return what the adapters refused or ignored, by reason."""
        found: Counter[str] = Counter()
        for adapter in (*self._host, *self._static, *(one for one, _ in self.files), *(one for one, _ in self.polls)):
            found.update(adapter.counters)
        return found

    def _adapters_of(self, topic: str) -> list[HostAdapter]:
        return [adapter for adapter in self._host if any(matches(wanted, topic) for wanted in adapter.topics())]

    def lost(self) -> list[tuple[str, list[Report]]]:
        """Return the reports after an absence of the host broker: lines may have been missed."""
        return [(adapter.source, adapter.lost()) for adapter in self._host]
