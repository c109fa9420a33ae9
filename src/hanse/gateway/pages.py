"""The pages of a gateway: `/metrics`, `/healthz`, and requests from its own machine."""

import json
from typing import Any

from hanse.errors import LocalError, RemoteError
from hanse.federator.http import JSON, HttpServer, Reply
from hanse.gateway.supervisor import Supervisor
from hanse.protocol.topics import check_filter
from hanse.telemetry.process import add_process_metrics
from hanse.telemetry.prometheus import MEDIA_TYPE, Registry

_ID_CHARACTERS_MAX = 65_535


class Metrics:
    """The registry of a gateway, filled at each scrape."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        registry = self._registry = Registry("gateway")
        add_process_metrics(registry, "gateway")
        self._clients = registry.gauge("clients", "Connections of clients that are open now.")
        self._connections = registry.counter("connections_total", "Connections of clients that were accepted.")
        self._accepted = registry.counter("accepted_total", "Clients whose CONNECT a broker accepted.")
        self._refused = registry.counters("refused_total", "Connections that got no session.", ("reason",))
        self._closes = registry.counters("closes_total", "Clients that the gateway closed.", ("reason",))
        self._moved = registry.counters("moved_total", "Clients that were attached to another broker.", ("reason",))
        self._federators = registry.counters(
            "federator_total", "Reports of interest to federators, and barriers of SUBACKs.", ("what",)
        )
        self._shares = registry.counters(
            "share_total", "Members of share groups across brokers, and outcomes of their messages.", ("what",)
        )
        self._moves = registry.counters("move_total", "Steps of moves.", ("what",))
        self._messages = registry.counters("messages_total", "Publications of clients and to clients.", ("direction",))
        self._dropped = registry.counters("dropped_total", "Dropped publications.", ("reason",))
        self._wills = registry.counters("wills_total", "Outcomes of the wills of clients that left.", ("what",))
        self._failures = registry.counter("broker_failures_total", "Failed connections to brokers.")
        self._late = registry.counter("late_total", "Connections cut off because they accepted nothing any more.")
        self._workers = registry.gauge("workers", "Workers that serve clients.")
        self._restarts = registry.counter("worker_restarts_total", "Workers that ended and were replaced.")
        self._asked = registry.gauge("manager_reached", "1 if a manager answered the last question; 1 without one.")
        self._not_asked = registry.counter("manager_failures_total", "Questions that no manager answered.")
        self._doubts = registry.counter("doubts_total", "Times when most brokers were silent and nobody was moved.")
        self._redirects = registry.counters("redirects_total", "Clients that were redirected.", ("how",))
        self._proxied = registry.counters(
            "redirect_proxied_total", "Clients of redirecting listeners that were proxied instead.", ("reason",)
        )
        self._checks = registry.counter("redirect_checks_total", "Credentials that were checked at a broker.")
        self._topics = registry.gauge("topics", "Topics of brokers that discovery knows.")
        self._topics_dropped = registry.counter("topics_dropped_total", "Topics dropped because the limit was reached.")
        self._looks_refused = registry.counter("looks_refused_total", "Looks for topics that were not begun.")
        self._groups = registry.gauge("groups", "Groups that federators have shown, once per broker.")
        self._groups_dropped = registry.counters(
            "groups_dropped_total", "Rows of federators' groups that were left out.", ("reason",)
        )
        self._up = registry.gauges("broker_up", "1 if the broker accepts clients.", ("broker",))
        self._at = registry.gauges("broker_clients", "Clients that are attached to the broker.", ("broker",))
        self._rtt = registry.gauges("broker_rtt_seconds", "Round trip of the health session.", ("broker",))
        self._verdicts = registry.counters("verdicts_total", "Changed verdicts on brokers.", ("verdict",))
        registry.at_scrape(self._fetch)

    def render(self) -> str:
        """Return the page."""
        return self._registry.render()

    def _fetch(self) -> None:
        supervisor = self._supervisor
        total = supervisor.counts()
        self._clients.set(total["clients"])
        self._connections.set(total["connections"])
        self._accepted.set(total["accepted"])
        self._failures.set(total["broker_failures"])
        self._late.set(total["late"])
        self._workers.set(len(supervisor.workers))
        self._restarts.set(supervisor.restarts)
        planner = supervisor.planner
        self._asked.set(1 if planner is None or planner.is_reached else 0)
        self._not_asked.set(0 if planner is None else planner.failures)
        self._doubts.set(supervisor.doubts)
        for family, name in (
            (self._refused, "refused"),
            (self._closes, "closes"),
            (self._moved, "moved"),
            (self._moves, "moves"),
            (self._federators, "federators"),
            (self._shares, "shares"),
            (self._messages, "messages"),
            (self._dropped, "drops"),
            (self._wills, "wills"),
            (self._redirects, "redirects"),
            (self._proxied, "proxied"),
        ):
            for label, count in total[name].items():
                family.labels(label).set(count)
        self._checks.set(total["redirect_checks"])
        self._dropped.labels("redirected").set(total["redirect_lost"])
        if (knowledge := supervisor.knowledge) is not None:
            self._topics.set(knowledge.topics.count)
            self._topics_dropped.set(knowledge.topics.dropped)
            self._looks_refused.set(knowledge.watch.looks_refused)
            self._groups.set(len(knowledge.groups))
            self._groups_dropped.labels("full").set(knowledge.groups.dropped)
            self._groups_dropped.labels("unreadable").set(knowledge.groups.unreadable)
        for verdict, count in supervisor.verdicts.items():
            self._verdicts.labels(verdict).set(count)
        for view in supervisor.directory.views:
            broker_id = view.broker.id
            self._up.labels(broker_id).set(0 if view.obstacle else 1)
            self._at.labels(broker_id).set(total["at_brokers"].get(broker_id, 0))
            if view.rtt_ms is not None:
                self._rtt.labels(broker_id).set(view.rtt_ms / 1e3)


def make_server(supervisor: Supervisor) -> HttpServer:
    """Return the server of a gateway's pages."""
    metrics = Metrics(supervisor)

    def show_metrics() -> Reply:
        return 200, MEDIA_TYPE, metrics.render()

    def show_health() -> Reply:
        return 200 if supervisor.is_ready else 503, JSON, _text(supervisor.health())

    async def take_explain(body: bytes) -> Reply:
        question = _question(body)
        client, topic = question.get("client"), question.get("topic")
        if not isinstance(client, str) or len(client) > _ID_CHARACTERS_MAX or not isinstance(topic, str | None):
            return _refused('expected {"client": TEXT, "topic": TEXT or null, "clean": true or false}')
        if topic is not None:
            try:
                check_filter(topic)
            except RemoteError as error:
                return _refused(str(error))
        return 200, JSON, _text(supervisor.explain(client, topic, is_clean=question.get("clean") is True))

    async def take_drain(body: bytes) -> Reply:
        question = _question(body)
        broker, rate, is_drained = question.get("broker"), question.get("rate"), question.get("drained")
        is_rate = rate is None or (isinstance(rate, int | float) and 0.1 <= rate <= 1e6)
        if not isinstance(broker, str) or not isinstance(is_drained, bool) or not is_rate:
            return _refused('expected {"broker": ID, "drained": true or false, "rate": 0.1 to 1000000 or null}')
        try:
            found = supervisor.drain(broker, rate, is_drained=is_drained)
        except LocalError as error:
            return _refused(str(error))
        return 200, JSON, _text(found)

    return HttpServer(
        {"/metrics": show_metrics, "/healthz": show_health}, posts={"/explain": take_explain, "/drain": take_drain}
    )


def _text(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


def _question(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _refused(text: str) -> Reply:
    return 400, JSON, _text({"error": text})
