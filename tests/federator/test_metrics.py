"""The page for Prometheus."""

import re
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from hanse.federator.metrics import AgentMetrics


def test_the_page_has_the_counts_at_the_time_of_the_scrape() -> None:
    protocol, agent, emitted = Counter(duplicates=3), Counter(delivered=4), Counter(core_changed=1)
    drops: dict[str, int] = {}
    groups = [5.0]
    metrics = AgentMetrics(
        protocol=protocol,
        agent=agent,
        emitted=emitted,
        drops=lambda: drops,
        gauges={"groups": ("Groups known.", lambda: groups[0])},
    )
    metrics.sent[7].messages[1] += 9
    metrics.sent[7].bytes += 100
    metrics.hop.observe(0.002)
    first = metrics.render()
    protocol["duplicates"] += 1
    drops["link_full"] = 2
    groups[0] = 6.0
    second = metrics.render()

    assert 'hanse_federator_protocol_total{what="duplicates"} 3' in first
    assert 'hanse_federator_protocol_total{what="duplicates"} 4' in second
    assert 'hanse_federator_agent_total{what="delivered"} 4' in second
    assert 'hanse_federator_events_total{event="core_changed"} 1' in second
    assert "link_full" not in first
    assert 'hanse_federator_dropped_total{reason="link_full"} 2' in second
    assert "hanse_federator_groups 5" in first
    assert "hanse_federator_groups 6" in second
    assert 'hanse_federator_link_messages_total{link="7",direction="out",qos="1"} 9' in second
    assert 'hanse_federator_link_bytes_total{link="7",direction="out"} 100' in second
    assert "hanse_federator_hop_seconds_count 1" in second


def test_each_link_has_one_pair_of_outgoing_and_incoming_counts() -> None:
    metrics = AgentMetrics(protocol={}, agent={}, emitted={}, drops=dict, gauges={})
    assert metrics.received[1] is metrics.received[1]
    assert metrics.received[1] is not metrics.sent[2]
    pairs = metrics.links()
    assert pairs == {1: (metrics.sent[1], metrics.received[1]), 2: (metrics.sent[2], metrics.received[2])}


def test_the_page_shows_when_certificates_expire(tmp_path: Path) -> None:
    path = tmp_path / "link.crt"
    metrics = AgentMetrics(protocol={}, agent={}, emitted={}, drops=dict, gauges={}, certificates={"link": path})
    assert "certificate_expiry_timestamp_seconds{" not in metrics.render()
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=site", "-keyout", str(tmp_path / "link.key"), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    found = re.search(r'certificate_expiry_timestamp_seconds\{use="link"\} (\S+)', metrics.render())
    assert found is not None
    assert float(found[1]) == pytest.approx(time.time() + 2 * 86_400, abs=60)
