"""Observer of a simulated federation. The default observes nothing, at a negligible cost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hanse.protocol.effects import Emit
    from hanse.protocol.events import Event
    from hanse.protocol.forwarding import Routed
    from hanse.protocol.messages import ControlFrame, Publication, Run
    from hanse.sim.federation import Federation, Node
    from hanse.sim.host import Client


class Monitor:
    """Receiver of the events of a run. Each method is called just after the event, unless it says otherwise."""

    def attach(self, federation: "Federation") -> None:
        """Learn of the federation before anything runs."""

    def edge(self, kind: str) -> None:
        """Learn that a fault began or ended, or that a federator noticed it: the protocol has something to repair."""

    def fault_began(self, kind: str, *, is_restless: bool) -> None:
        """Learn that a scheduled fault began. A restless one keeps changing things until it ends."""

    def fault_ended(self, kind: str, *, is_restless: bool) -> None:
        """Learn that a scheduled fault ended."""

    def started(self, node: "Node") -> None:
        """Learn that a federator runs."""

    def stopped(self, node: "Node") -> None:
        """Learn that a federator is about to lose its machine."""

    def leaving(self, node: "Node") -> None:
        """Learn that a federator is about to announce that it leaves."""

    def host_stopped(self, node: "Node") -> None:
        """Learn that a host broker is down."""

    def host_started(self, node: "Node") -> None:
        """Learn that a host broker is back."""

    def stepped(self, node: "Node", event: "Event") -> None:
        """Learn that a machine took a step of the control plane, and that its effects are carried out."""

    def heard(self, node: "Node", neighbour: int, frame: "ControlFrame") -> None:
        """Learn that a control frame is about to be handed to a machine."""

    def forwarded(self, node: "Node", neighbour: int, runs: Sequence["Run"], routed: "Routed") -> None:
        """Learn that a machine handled a data frame."""

    def routed(self, node: "Node", publications: Sequence["Publication"], routed: "Routed") -> None:
        """Learn that a machine handled publications of its host."""

    def sending(self, node: "Node", neighbour: int, runs: Sequence["Run"]) -> None:
        """Learn that a data frame goes out."""

    def delivered(self, node: "Node", runs: Sequence["Run"]) -> None:
        """Learn that a machine has publications for its host broker."""

    def taken(self, node: "Node", runs: Sequence["Run"]) -> None:
        """Learn that a host broker has acknowledged publications and that its federator has noted so on disk."""

    def lost_in_flight(self, runs: Sequence["Run"]) -> None:
        """Learn that a data frame was lost: on a connection that broke, in a deaf direction, or to noise."""

    def lost_with_host(self, publications: Sequence["Publication"]) -> None:
        """Learn that a host broker died while it had these publications for its federator."""

    def lost_with_disk(self, node: "Node") -> None:
        """Learn that the disk of a federator is gone with all its contents. It is about to be replaced."""

    def closed(self, node: "Node", neighbour: int, reason: str) -> None:
        """Learn that a machine asked to close a link."""

    def emitted(self, node: "Node", effect: "Emit") -> None:
        """Learn that a machine reported an event to people."""

    def published(self, node: "Node", number: int, topic: str, qos: int, packet: bytes, *, is_told: bool) -> None:
        """Learn that a client published.

        The broker is about to serve local subscribers, and the federator if `is_told`.
        """

    def interest_changed(self, node: "Node", topic_filter: str) -> None:
        """Learn that a broker's interest in a filter began or ended."""

    def unsubscribing(self, client: "Client", topic_filter: str) -> None:
        """Learn that a client is about to unsubscribe."""
