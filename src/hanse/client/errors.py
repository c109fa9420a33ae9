"""Errors that the client raises, besides those of `hanse.errors`.

`LocalError`: the caller must change something. `RemoteError`: the broker refused. `Unavailable`: try again later.
"""

from typing import Final

from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.mqtt.client import ConnectRefused

# The reason codes of MQTT 5 that a broker uses to refuse a SUBSCRIBE or a PUBLISH (3.4.2.1, 3.5.2.1, 3.9.3).
_NAMES: Final = {
    0x80: "unspecified error",
    0x83: "implementation specific error",
    0x87: "not authorized",
    0x8F: "topic filter not accepted",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x95: "packet too large",
    0x97: "quota exceeded",
    0x99: "payload format invalid",
    0x9E: "shared subscriptions not supported",
    0xA1: "subscription identifiers not supported",
    0xA2: "wildcard subscriptions not supported",
}


def reason(code: int) -> str:
    """Return a reason code with its name."""
    return f"{code:#04x} {_NAMES.get(code, 'refused')}"


class SubscribeRefused(RemoteError):  # noqa: N818 - the name is what the broker did
    """Refusal of a filter by the broker, at the first SUBSCRIBE or at a later connection."""

    def __init__(self, pattern: str, reason_code: int) -> None:
        super().__init__(
            f"The broker refused the subscription to {pattern!r}: {reason(reason_code)}; check the filter and the "
            "broker's access list."
        )
        self.filter = pattern
        self.reason_code = reason_code


class PublishRefused(RemoteError):  # noqa: N818 - the name is what the broker did
    """Refusal of a publication by the broker: it is not delivered to anybody."""

    def __init__(self, topic: str, reason_code: int) -> None:
        super().__init__(
            f"The broker refused a publication on {topic!r}: {reason(reason_code)}; check the topic, the size and "
            "the broker's access list."
        )
        self.topic = topic
        self.reason_code = reason_code


class PublishInDoubt(Unavailable):
    """QoS 2 publication whose outcome is unknown: the broker had it and then lost the session.

    Sending it again may deliver it twice.
    """

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"The broker had received a publication of QoS 2 on {topic!r} and then lost the session; it may or may "
            "not have been delivered. Publish it again only if a duplicate does no harm."
        )
        self.topic = topic


class Closed(LocalError):  # noqa: N818 - the name is the state
    """Use of a client outside its `async with` block."""

    def __init__(self) -> None:
        super().__init__("The client is not open; use it inside `async with Client(url) as client:`.")


__all__ = ["Closed", "ConnectRefused", "PublishInDoubt", "PublishRefused", "SubscribeRefused", "reason"]
