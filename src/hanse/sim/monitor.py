"""What a simulated federation tells whoever watches it. The default watches nothing, at no cost worth naming."""

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
    """Each method is called when the thing it is named after has just happened, unless it says otherwise."""

    def attach(self, federation: "Federation") -> None:
        """The federation exists; nothing runs yet."""

    def edge(self, kind: str) -> None:
        """A fault began or ended, or someone learned of it: the protocol has something to repair."""

    def fault_began(self, kind: str, *, is_restless: bool) -> None:
        """A fault of the schedule is on; a restless one keeps changing things until it ends."""

    def fault_ended(self, kind: str, *, is_restless: bool) -> None:
        """A fault of the schedule is over."""

    def started(self, node: "Node") -> None:
        """A federator runs."""

    def stopped(self, node: "Node") -> None:
        """A federator is about to lose its machine."""

    def leaving(self, node: "Node") -> None:
        """A federator is about to say that it leaves."""

    def host_stopped(self, node: "Node") -> None:
        """A host broker is down."""

    def host_started(self, node: "Node") -> None:
        """A host broker is back."""

    def stepped(self, node: "Node", event: "Event") -> None:
        """A machine took a step of the control plane, and its effects are carried out."""

    def heard(self, node: "Node", neighbour: int, frame: "ControlFrame") -> None:
        """A control frame is about to be given to a machine."""

    def forwarded(self, node: "Node", neighbour: int, runs: Sequence["Run"], routed: "Routed") -> None:
        """A machine handled a data frame."""

    def routed(self, node: "Node", publications: Sequence["Publication"], routed: "Routed") -> None:
        """A machine handled what was published at its host."""

    def sending(self, node: "Node", neighbour: int, runs: Sequence["Run"]) -> None:
        """A data frame goes out."""

    def delivered(self, node: "Node", runs: Sequence["Run"]) -> None:
        """A machine has publications for its host broker."""

    def taken(self, node: "Node", runs: Sequence["Run"]) -> None:
        """A host broker has acknowledged publications, and its federator has noted so on disk."""

    def lost_in_flight(self, runs: Sequence["Run"]) -> None:
        """A data frame was on a connection that broke, or on a deaf way, or was lost to noise."""

    def lost_with_host(self, publications: Sequence["Publication"]) -> None:
        """A host broker died and had these for its federator."""

    def lost_with_disk(self, node: "Node") -> None:
        """A federator's disk is gone, with all that was on it; it is about to be replaced."""

    def closed(self, node: "Node", neighbour: int, reason: str) -> None:
        """A machine asked for a link to be closed."""

    def emitted(self, node: "Node", effect: "Emit") -> None:
        """A machine told people something."""

    def published(self, node: "Node", number: int, topic: str, qos: int, packet: bytes, *, is_told: bool) -> None:
        """A client published; the broker is about to hand it to local subscribers, and on if `is_told`."""

    def interest_changed(self, node: "Node", topic_filter: str) -> None:
        """A broker's interest in a filter began or ended."""

    def unsubscribing(self, client: "Client", topic_filter: str) -> None:
        """A client is about to unsubscribe."""
