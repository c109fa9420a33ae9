"""Configuration texts for brokers, one per vendor, that make their subscriptions known to a federator."""

from hanse.errors import LocalError
from hanse.interest.mosquitto_log import CONNECTION, COUNT_TOPICS, LOG

MOSQUITTO_LOG_TYPES = ("error", "warning", "notice", "information", "subscribe", "unsubscribe")

# Resources that a session of the MQTT plugin uses: its queue, and the exchange for all publications.
RABBITMQ_OWN = r"^(mqtt-subscription-.*|amq\.topic)$"
RABBITMQ_PLUGINS = ("rabbitmq_mqtt", "rabbitmq_management")
# Settings of the plugin, wherever RabbitMQ runs.
RABBITMQ_LINES = (
    "mqtt.exchange = amq.topic",
    "# Messages under way to one client. The federator holds acknowledgements back while others take a message over,",
    "# and RabbitMQ's own 10 would stop it after ten.",
    "mqtt.prefetch = 10000",
    "# How long a session without its client is kept, in ms; the queue behind it grows for as long.",
    "mqtt.subscription_ttl = 3600000",
)


def mosquitto(*, log_file: str | None = None) -> str:
    """Return the lines for `mosquitto.conf`, 1.4 to 2.1; with `log_file` for the `mosquitto-file` adapter."""
    destination = f"log_dest file {log_file}" if log_file else "log_dest topic"
    types = "\n".join(f"log_type {kind}" for kind in MOSQUITTO_LOG_TYPES)
    needed = (f"{LOG}#", f"{CONNECTION}+/state", *COUNT_TOPICS)
    reader = (
        "# The federator's user must be allowed to read that file."
        if log_file
        else "\n".join(["# With an ACL, its user needs:", *(f"#   topic read {topic}" for topic in needed)])
    )
    return f"""\
# Hanse: settings that let a federator see subscriptions. One line each for subscribe, unsubscribe, connect, disconnect.
{destination}
# Several `log_dest` add up, but any of them replaces the default: list all other destinations as well.
log_dest stderr
# Any `log_type` replaces the default set, so the usual types are listed with the two that are needed.
{types}
# Connects and disconnects show when a subscription ends with its session.
connection_messages true
{reader}
# If the federator runs on this machine under the broker's user, add `log_dest stdout` and give it the broker's output
# as `broker_output`. It then finds subscriptions from before its start, too; see docs/operating.md.
"""


def rabbitmq(*, log_file: str | None = None) -> str:
    """Return the configuration for RabbitMQ 3.8 to 3.11."""
    _refuse_log_file("rabbitmq", log_file)
    return f"""\
# Hanse: settings that let a federator serve RabbitMQ and see subscriptions.
#
# Plugins (rabbitmq-plugins enable {" ".join(RABBITMQ_PLUGINS)}): MQTT, and the list of bindings over HTTP.
#
# A user who may read that list, here `hanse`:
#   rabbitmqctl add_user hanse PASSWORD
#   rabbitmqctl set_user_tags hanse monitoring
#   rabbitmqctl set_permissions -p / hanse '{RABBITMQ_OWN}' '{RABBITMQ_OWN}' '{RABBITMQ_OWN}'
#
# Start the federator with
#   --interest poll:rabbitmq --poll-url http://127.0.0.1:15672 --poll-username hanse
# and HANSE_POLL_PASSWORD, and the same login for --broker.
#
# The lines for rabbitmq.conf:
{chr(10).join(RABBITMQ_LINES)}
"""


def nats(*, log_file: str | None = None) -> str:
    """Return the configuration for NATS 2.9."""
    _refuse_log_file("nats", log_file)
    return """\
# Hanse: settings that let a federator serve NATS and see subscriptions.
#
# Start the federator with
#   --interest poll:nats --poll-url http://127.0.0.1:8222
#
# The lines for the server's configuration. MQTT sessions live in JetStream, and need a server name:
server_name: nats
jetstream {
  store_dir: "/var/lib/nats"
}
mqtt {
  port: 1883
  # QoS 1 messages under way to one client. The federator delays acknowledgements until others have the messages.
  max_ack_pending: 10000
}
# The list of connections and their subscriptions. It has no login, so serve it only on this machine.
http: "127.0.0.1:8222"
"""


def emqx(*, log_file: str | None = None) -> str:
    """Return the configuration for EMQX 5."""
    _refuse_log_file("emqx", log_file)
    return """\
# Hanse: settings that let a federator see subscriptions at EMQX 5. (Written from the vendor's documentation.)
#
# Start the federator with
#   --interest emqx
# on the broker's own machine: EMQX's default ACL lets only clients there read $SYS topics. Or, slower and
# without gaps, use the list over HTTP, with an API key made in the dashboard:
#   --interest poll:emqx --poll-url http://127.0.0.1:18083 --poll-username KEY
# and HANSE_POLL_PASSWORD for its secret.
#
# The lines for emqx.conf:
sys_topics {
  sys_event_messages {
    client_connected = true
    client_disconnected = true
    client_subscribed = true
    client_unsubscribed = true
  }
}
"""


def _refuse_log_file(vendor: str, log_file: str | None) -> None:
    if log_file is not None:
        raise LocalError(f"A log file was named for {vendor}, whose log does not show subscriptions; leave it out.")


# Text by vendor.
VENDORS = {"emqx": emqx, "mosquitto": mosquitto, "nats": nats, "rabbitmq": rabbitmq}


def lines(vendor: str, *, log_file: str | None = None) -> str:
    """Return the configuration of a vendor.

    Raises:
        LocalError: There is no configuration for the vendor.
    """
    text = VENDORS.get(vendor)
    if text is None:
        raise LocalError(
            f"No configuration is known for vendor {vendor!r}; expected one of: {', '.join(sorted(VENDORS))}. "
            "For other brokers use static filters, beacons, or the gateway."
        )
    return text(log_file=log_file)
