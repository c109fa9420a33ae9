"""Messages that are not telemetry, with a printable payload."""

from hanse.pipeline.schemas.table import Column, Table, count, maybe, moment, text

TABLE = Table(
    "silver_messages",
    "A message that a client published.",
    (
        moment("collected_at", "when the collector received it"),
        text("topic", "the topic"),
        count("levels", "levels of the topic"),
        count("payload_bytes", "size of the payload"),
        text("payload_text", "the beginning of the payload as text, with escapes for unprintable characters"),
        Column("is_text", "boolean", "true if the whole payload is UTF-8"),
        count("qos", "quality of service"),
        Column("is_retained", "boolean", "true if the retain flag was set"),
        count("properties", "number of MQTT 5 user properties"),
        maybe(text("origin", "the publishing broker, if the collector is a member of the federation")),
        maybe(text("message_id", "the federation's id of the message, if known")),
    ),
)
