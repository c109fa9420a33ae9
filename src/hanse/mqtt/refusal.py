"""Refusal of a peer's packet: one exception with the reason code for the peer and the name of the counter."""

from typing import Final

from hanse.errors import RemoteError

# Reason codes of MQTT 5 (section 2.4) that this package sends or looks for.
NORMAL: Final = 0x00
WITH_WILL: Final = 0x04
UNSPECIFIED: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
UNSUPPORTED_VERSION: Final = 0x84
NOT_AUTHORIZED: Final = 0x87
SERVER_BUSY: Final = 0x89
SHUTTING_DOWN: Final = 0x8B
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_NAME_INVALID: Final = 0x90
ID_NOT_FOUND: Final = 0x92
RECEIVE_MAX_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
QUOTA_EXCEEDED: Final = 0x97
CONNECT_TIMEOUT: Final = 0xA0

_COUNTED_AS: Final = {
    MALFORMED_PACKET: "malformed",
    PROTOCOL_ERROR: "protocol_error",
    UNSUPPORTED_VERSION: "unsupported_version",
    NOT_AUTHORIZED: "not_authorized",
    SERVER_BUSY: "busy",
    KEEP_ALIVE_TIMEOUT: "keep_alive",
    TOPIC_NAME_INVALID: "topic_name",
    RECEIVE_MAX_EXCEEDED: "receive_max",
    TOPIC_ALIAS_INVALID: "topic_alias",
    PACKET_TOO_LARGE: "packet_too_large",
    QUOTA_EXCEEDED: "quota",
    CONNECT_TIMEOUT: "connect_deadline",
}


class Refusal(RemoteError):  # noqa: N818 - the name is the event, which the peer gets as a reason code
    """Violation of a rule of MQTT or a limit of ours: the connection ends with `reason_code`, nothing else."""

    def __init__(self, reason_code: int, message: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code

    @property
    def counted_as(self) -> str:
        """Label of the counter."""
        return _COUNTED_AS.get(self.reason_code, "unspecified")


def malformed(message: str) -> Refusal:
    """Return the refusal of bytes that the packet format does not allow (reason code 0x81)."""
    return Refusal(MALFORMED_PACKET, message)


def protocol_error(message: str) -> Refusal:
    """Return the refusal of a well-formed packet that is not allowed here or now (reason code 0x82)."""
    return Refusal(PROTOCOL_ERROR, message)
