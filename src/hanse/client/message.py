"""A message as an application sees it: topic and payload at once, properties on demand."""

from functools import cached_property

from mqtt5 import PublishPacket

from hanse.mqtt.publication import Publication, decode, expiry_s


class Message:
    """Publication that a broker delivered.

    Attributes:
        topic: The topic name.
        qos: The QoS of this delivery, at most that of the subscription.
        retain: Whether the broker had retained it (or, with `retain_as_published`, whether the publisher said so).
        dup: Whether the broker has sent it before.
        subscription_ids: The identifiers of the subscriptions that it matched.
    """

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self.topic = publication.topic
        self.qos = publication.qos
        self.retain = publication.retain
        self.dup = publication.dup
        self.subscription_ids = publication.subscription_ids
        # Streams that hold it; the broker gets its acknowledgement when the last of them has released it.
        self.holders = 0

    @property
    def receipt(self) -> int:
        """Name under which the session acknowledges it; 0 at QoS 0."""
        return self._publication.receipt

    @cached_property
    def payload(self) -> bytes:
        """Payload as the publisher sent it."""
        return self._publication.payload

    def text(self, encoding: str = "utf-8") -> str:
        """Return the payload as text.

        Raises:
            UnicodeDecodeError: It is not.
        """
        return self.payload.decode(encoding)

    @property
    def expiry_s(self) -> int | None:
        """Seconds of its expiry that were left when the broker sent it."""
        return expiry_s(self._publication.packet)

    @property
    def content_type(self) -> str | None:
        """Type of the payload, as the publisher declared it."""
        return self._decoded.content_type

    @property
    def response_topic(self) -> str | None:
        """Topic on which the publisher wants the answer."""
        return self._decoded.response_topic

    @property
    def correlation_data(self) -> bytes | None:
        """Data that the answer must repeat."""
        return self._decoded.correlation_data

    @property
    def payload_format_indicator(self) -> int:
        """1 if the publisher declared the payload as UTF-8."""
        return int(self._decoded.payload_format_indicator or 0)

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        """Names and values, in the publisher's order."""
        return list(self._decoded.user_properties)

    @cached_property
    def _decoded(self) -> PublishPacket:
        return decode(self._publication.packet)

    def __repr__(self) -> str:
        return f"<Message {self.topic!r}, {len(self.payload)} bytes, QoS {self.qos}>"
