from typing import Any

import pytest

from hanse.pipeline.schemas import control_overhead as overhead_schema
from hanse.pipeline.schemas import delivery as delivery_schema
from hanse.pipeline.schemas import drops as drops_schema
from hanse.pipeline.schemas import duplicates as duplicates_schema
from hanse.pipeline.schemas import flow_increments as flow_schema
from hanse.pipeline.schemas import link_increments as link_schema
from hanse.pipeline.schemas import memberships as memberships_schema
from hanse.pipeline.schemas import paths as paths_schema
from hanse.pipeline.schemas import silver
from hanse.pipeline.schemas import throughput as throughput_schema
from hanse.pipeline.schemas import traffic_matrix as matrix_schema
from hanse.pipeline.transforms.control_overhead import control_overhead
from hanse.pipeline.transforms.delivery import delivery
from hanse.pipeline.transforms.drops import drops
from hanse.pipeline.transforms.duplicates import duplicates
from hanse.pipeline.transforms.flow_increments import flow_increments
from hanse.pipeline.transforms.link_increments import link_increments
from hanse.pipeline.transforms.memberships import memberships
from hanse.pipeline.transforms.throughput import throughput
from hanse.pipeline.transforms.traffic_matrix import traffic_matrix

pytestmark = pytest.mark.spark

FLOW = silver.TABLES["flow"]
COUNT = "reporter at started_at origin group measure publications payload_bytes"
GROWN = "broker since at origin group measure publications payload_bytes"


def test_counts_become_increments_through_restarts_repeats_and_late_listeners(make: Any, check: Any) -> None:
    counts = make(
        FLOW,
        COUNT,
        ("1", 10, 0, "1", "a", "published", 100, 1_000),  # first report of its series: all of it is new
        ("1", 20, 0, "1", "a", "published", 150, 1_500),
        ("1", 20, 0, "1", "a", "published", 150, 1_500),  # repeated report
        ("1", 30, 0, "1", "a", "published", 150, 1_500),  # nothing happened
        ("1", 40, 35, "1", "a", "published", 7, 70),  # restarted at 35
        ("1", 50, 35, "1", "a", "published", 9, 90),
        ("1", 50, 45, "1", "b", "published", 3, 30),  # a second series, begun at 45
        ("2", 1_000, 0, "1", "a", "delivered", 5_000, 50_000),  # 2 ran long before our records begin
        ("2", 1_010, 0, "1", "a", "delivered", 5_004, 50_040),
        ("3", 10, 5, "1", "a", "delivered", 0, 0),  # 3 counted nothing
    )
    check(
        flow_increments(counts),
        flow_schema.TABLE,
        GROWN,
        ("1", 0, 10, "1", "a", "published", 100, 1_000),
        ("1", 10, 20, "1", "a", "published", 50, 500),
        ("1", 20, 30, "1", "a", "published", 0, 0),
        ("1", 35, 40, "1", "a", "published", 7, 70),
        ("1", 40, 50, "1", "a", "published", 2, 20),
        ("1", 45, 50, "1", "b", "published", 3, 30),
        ("2", 1_000, 1_010, "1", "a", "delivered", 4, 40),
        ("3", 5, 10, "1", "a", "delivered", 0, 0),
    )


@pytest.mark.slow
def test_a_clock_set_back_adds_no_count_twice(make: Any) -> None:
    counts = make(
        FLOW,
        COUNT,
        ("1", 10, 5, "1", "a", "published", 10, 10),
        ("1", 20, 5, "1", "a", "published", 20, 20),
        ("1", 15, 5, "1", "a", "published", 30, 30),  # counted after the 20, dated before it
    )
    grown = flow_increments(counts)
    assert {row["at"].second: row.publications for row in grown.collect()} == {10: 10, 15: 20, 20: 0}


@pytest.mark.slow
def test_link_counts_become_increments(make: Any, check: Any) -> None:
    header = "reporter neighbour at started_at data_bytes_sent control_bytes_sent dropped_frames queue_bytes"
    counts = make(
        silver.TABLES["link"],
        header,
        ("1", "2", 10, 0, 100, 10, 0, 7),
        ("1", "2", 20, 0, 300, 15, 1, 9),
        ("1", "3", 10, 5, 1, 1, 0, 0),
        ("2", "1", 10, 0, 50, 50, 0, 0),
    )
    check(
        link_increments(counts),
        link_schema.TABLE,
        "broker neighbour since at data_bytes_sent control_bytes_sent dropped_frames queue_bytes",
        ("1", "2", 0, 10, 100, 10, 0, 7),
        ("1", "2", 10, 20, 200, 5, 1, 9),
        ("1", "3", 5, 10, 1, 1, 0, 0),
        ("2", "1", 0, 10, 50, 50, 0, 0),
    )


@pytest.mark.slow
def test_throughput_is_by_window_broker_group_and_measure(make: Any, check: Any) -> None:
    grown = make(
        flow_schema.TABLE,
        GROWN,
        ("1", 0, 10, "1", "a", "published", 60, 600),
        ("1", 10, 59, "1", "a", "published", 60, 600),
        ("1", 59, 60, "1", "a", "published", 6, 60),
        ("1", 0, 10, "1", "b", "published", 3, 0),
        ("2", 0, 10, "1", "a", "delivered", 30, 300),
        ("2", 0, 10, "3", "a", "delivered", 30, 300),
    )
    check(
        throughput(grown),
        throughput_schema.TABLE,
        "window_start broker group measure publications payload_bytes publications_per_s payload_bytes_per_s",
        (0, "1", "a", "published", 120, 1_200, 2.0, 20.0),
        (60, "1", "a", "published", 6, 60, 0.1, 1.0),
        (0, "1", "b", "published", 3, 0, 0.05, 0.0),
        (0, "2", "a", "delivered", 60, 600, 1.0, 10.0),
    )


def test_the_traffic_matrix_holds_the_deliveries_of_destinations(make: Any, check: Any) -> None:
    grown = make(
        flow_schema.TABLE,
        GROWN,
        ("1", 0, 10, "1", "a", "published", 60, 600),
        ("2", 0, 10, "1", "a", "forwarded", 60, 600),
        ("3", 0, 10, "1", "a", "delivered", 40, 400),
        ("3", 10, 20, "1", "a", "delivered", 20, 200),
        ("3", 20, 30, "1", "a", "delivered", 0, 0),
        ("3", 0, 61, "2", "a", "delivered", 1, 10),
    )
    check(
        traffic_matrix(grown),
        matrix_schema.TABLE,
        "window_start origin destination group publications payload_bytes",
        (0, "1", "3", "a", 60, 600),
        (60, "2", "3", "a", 1, 10),
    )


@pytest.mark.slow
def test_membership_intervals_follow_join_and_leave_events(make: Any, check: Any) -> None:
    events = make(
        silver.TABLES["mesh"],
        "at event group federator",
        (1, "member_joined", "a", "2"),
        (1, "core_elected", "a", "2"),
        (2, "member_joined", "a", "2"),  # repeated
        (9, "member_left", "a", "2"),
        (12, "member_joined", "a", "2"),
        (3, "member_left", "a", "3"),  # was never a member
        (4, "member_joined", "b", "2"),
    )
    check(
        memberships(events),
        memberships_schema.TABLE,
        "group federator joined_at left_at",
        ("a", "2", 1, 9),
        ("a", "2", 12, None),
        ("b", "2", 4, None),
    )


@pytest.mark.slow
def test_expected_publications_are_compared_with_delivered_ones(make: Any, check: Any) -> None:
    grown = make(
        flow_schema.TABLE,
        GROWN + " destination reason",
        ("1", 10, 20, "1", "a", "published", 100, 0, None, None),
        ("1", 20, 30, "1", "a", "published", 50, 0, None, None),  # 3 joins in the middle of this
        ("1", 60, 70, "1", "a", "published", 10, 0, None, None),
        ("2", 10, 31, "1", "a", "delivered", 140, 0, "2", None),
        ("2", 31, 71, "1", "a", "delivered", 15, 0, "2", None),  # five of these belong to the previous window
        ("3", 10, 31, "1", "a", "delivered", 20, 0, "3", None),
        ("3", 60, 71, "1", "a", "delivered", 6, 0, "3", None),
        ("1", 60, 71, "1", "a", "dropped", 3, 0, "3", "queue full"),
        ("1", 10, 20, "1", "b", "published", 9, 0, None, None),  # nobody else subscribes to b
    )
    stays = make(
        memberships_schema.TABLE,
        "group federator joined_at left_at",
        ("a", "1", 0, None),  # the federation does not serve the origin's own broker
        ("a", "2", 0, None),
        ("a", "3", 25, None),
        ("a", "4", 0, 10),  # left just before
        ("b", "1", 0, None),
    )
    check(
        delivery(grown, stays),
        delivery_schema.TABLE,
        "window_start origin destination group expected uncertain delivered dropped "
        "expected_total uncertain_total delivered_total dropped_total lost_total unexplained_total delivery_ratio",
        (0, "1", "2", "a", 150, 0, 140, 0, 150, 0, 140, 0, 10, 10, 140 / 150),
        (60, "1", "2", "a", 10, 0, 15, 0, 160, 0, 155, 0, 5, 5, 155 / 160),
        (0, "1", "3", "a", 0, 50, 20, 0, 0, 50, 20, 0, 0, 0, None),
        (60, "1", "3", "a", 10, 0, 6, 3, 10, 50, 26, 3, 0, 0, 1.0),
    )


@pytest.mark.slow
def test_nothing_is_expected_at_a_new_member_until_it_has_settled(make: Any, check: Any) -> None:
    grown = make(
        flow_schema.TABLE,
        GROWN,
        ("1", 10, 11, "1", "a", "published", 1, 0),
        ("1", 11, 12, "1", "a", "published", 1, 0),
        ("1", 12, 13, "1", "a", "published", 1, 0),
    )
    stays = make(memberships_schema.TABLE, "group federator joined_at left_at", ("a", "2", 10, None))
    header = "destination expected uncertain delivered lost_total unexplained_total"
    check(delivery(grown, stays), delivery_schema.TABLE, header, ("2", 1, 2, 0, 1, 1))


@pytest.mark.slow
def test_drops_are_by_reason(make: Any, check: Any) -> None:
    grown = make(
        flow_schema.TABLE,
        GROWN + " reason",
        ("1", 0, 10, "1", "a", "dropped", 2, 0, "queue full"),
        ("1", 10, 20, "1", "a", "dropped", 3, 0, "queue full"),
        ("1", 10, 20, "1", "a", "dropped", 1, 0, "hop limit"),
        ("1", 10, 20, "1", "a", "dropped", 1, 0, None),
        ("1", 10, 20, "1", "a", "dropped", 0, 0, "expired"),
        ("1", 10, 20, "1", "a", "published", 9, 0, None),
    )
    check(
        drops(grown),
        drops_schema.TABLE,
        "window_start broker origin group reason publications",
        (0, "1", "1", "a", "queue full", 5),
        (0, "1", "1", "a", "hop limit", 1),
        (0, "1", "1", "a", "not said", 1),
    )


@pytest.mark.slow
def test_duplicates_are_counted_as_suppressed_or_delivered_twice(make: Any, check: Any) -> None:
    grown = make(
        flow_schema.TABLE,
        GROWN,
        ("2", 0, 10, "1", "a", "duplicate", 4, 0),
        ("2", 10, 20, "3", "a", "duplicate", 1, 0),
        ("2", 10, 20, "3", "b", "duplicate", 0, 0),
    )
    found = make(
        paths_schema.TABLE,
        "destination group delivered_at copies",
        ("2", "a", 1, 1),
        ("2", "a", 2, 3),
        ("4", "a", 2, 1),
    )
    check(
        duplicates(grown, found),
        duplicates_schema.TABLE,
        "window_start broker group suppressed sampled delivered_twice",
        (0, "2", "a", 5, 2, 1),
        (0, "4", "a", 0, 1, 0),
    )


@pytest.mark.slow
def test_control_overhead_is_the_senders_share(make: Any, check: Any) -> None:
    grown = make(
        link_schema.TABLE,
        "broker neighbour at data_frames_sent data_bytes_sent control_frames_sent control_bytes_sent dropped_frames",
        ("1", "2", 10, 10, 900, 5, 60, 0),
        ("1", "2", 20, 0, 0, 4, 40, 2),
        ("2", "1", 20, 0, 0, 1, 60, 0),
        ("1", "3", 70, 0, 0, 0, 0, 0),
    )
    check(
        control_overhead(grown),
        overhead_schema.TABLE,
        "window_start broker neighbour data_frames data_bytes control_frames control_bytes dropped_frames "
        "control_bytes_per_s control_share",
        (0, "1", "2", 10, 900, 9, 100, 2, 100 / 60, 0.1),
        (0, "2", "1", 0, 0, 1, 60, 0, 1.0, 1.0),
        (60, "1", "3", 0, 0, 0, 0, 0, 0.0, None),
    )
