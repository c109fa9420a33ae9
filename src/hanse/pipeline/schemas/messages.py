"""Messages that are not telemetry, with a payload that can be looked at."""

from hanse.pipeline.schemas.table import Column, Table, count, maybe, moment, text

TABLE = Table(
    "silver_messages",
    "A message that a client published.",
    (
        moment("collected_at", "when the collector received it"),
        text("topic", "the topic"),
        count("levels", "levels of the topic"),
        count("payload_bytes", "size of the payload"),
        text("payload_text", "the beginning of the payload as text; what is not printable is shown as an escape"),
        Column("is_text", "boolean", "whether the whole payload is UTF-8"),
        count("qos", "quality of service"),
        Column("is_retained", "boolean", "whether the retain flag was set"),
        count("properties", "how many MQTT 5 user properties it carried"),
        maybe(text("origin", "the publishing broker, where the collector read federation frames")),
        maybe(text("message_id", "the federation's id of the message, where known")),
    ),
)
