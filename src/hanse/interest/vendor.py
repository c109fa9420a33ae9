"""What a broker's own configuration needs, so that its subscriptions become known: one text a vendor."""

from hanse.errors import LocalError
from hanse.interest.mosquitto_log import CONNECTION, COUNT_TOPICS, LOG

MOSQUITTO_LOG_TYPES = ("error", "warning", "notice", "information", "subscribe", "unsubscribe")

# What a session of the MQTT plugin touches: its queue, and the exchange that all publications go through.
RABBITMQ_OWN = r"^(mqtt-subscription-.*|amq\.topic)$"
RABBITMQ_PLUGINS = ("rabbitmq_mqtt", "rabbitmq_management")
# What the plugin is to be told, wherever RabbitMQ runs.
RABBITMQ_LINES = (
    "mqtt.exchange = amq.topic",
    "# Messages under way to one client. The federator holds acknowledgements back while others take a message over,",
    "# and RabbitMQ's own 10 would stop it after ten.",
    "mqtt.prefetch = 10000",
    "# How long a session without its client is kept, in ms; the queue behind it grows for as long.",
    "mqtt.subscription_ttl = 3600000",
)


def mosquitto(*, log_file: str | None = None) -> str:
    """The lines for `mosquitto.conf`, 1.4 to 2.1; with `log_file` for the `mosquitto-file` adapter."""
    destination = f"log_dest file {log_file}" if log_file else "log_dest topic"
    types = "\n".join(f"log_type {kind}" for kind in MOSQUITTO_LOG_TYPES)
    needed = (f"{LOG}#", f"{CONNECTION}+/state", *COUNT_TOPICS)
    reader = (
        "# The federator's user has to be allowed to read that file."
        if log_file
        else "\n".join(["# With an ACL, its user needs:", *(f"#   topic read {topic}" for topic in needed)])
    )
    return f"""\
# Hanse: what lets a federator know of subscriptions. One line each for subscribe, unsubscribe, connect, disconnect.
{destination}
# `log_dest` adds up, but one of them replaces the default: repeat where else the log should go.
log_dest stderr
# Any `log_type` replaces the default set, so the usual ones are repeated beside the two that are needed.
{types}
# Connects and disconnects tell when a subscription ends with its session.
connection_messages true
{reader}
"""


def rabbitmq(*, log_file: str | None = None) -> str:
    """What RabbitMQ 3.8 to 3.11 needs."""
    _refuse_log_file("rabbitmq", log_file)
    return f"""\
# Hanse: what lets a federator serve RabbitMQ and know of subscriptions.
#
# Plugins (rabbitmq-plugins enable {" ".join(RABBITMQ_PLUGINS)}): MQTT, and the list of bindings over HTTP.
#
# A user who may read that list, here `hanse`:
#   rabbitmqctl add_user hanse PASSWORD
#   rabbitmqctl set_user_tags hanse monitoring
#   rabbitmqctl set_permissions -p / hanse '{RABBITMQ_OWN}' '{RABBITMQ_OWN}' '{RABBITMQ_OWN}'
#
# The federator then is started with
#   --interest poll:rabbitmq --poll-url http://127.0.0.1:15672 --poll-username hanse
# and HANSE_POLL_PASSWORD, beside the same login for --broker.
#
# The lines for rabbitmq.conf:
{chr(10).join(RABBITMQ_LINES)}
"""


def nats(*, log_file: str | None = None) -> str:
    """What NATS 2.9 needs."""
    _refuse_log_file("nats", log_file)
    return """\
# Hanse: what lets a federator serve NATS and know of subscriptions.
#
# The federator is started with
#   --interest poll:nats --poll-url http://127.0.0.1:8222
#
# The lines for the server's configuration. MQTT sessions live in JetStream, and need a server name:
server_name: nats
jetstream {
  store_dir: "/var/lib/nats"
}
mqtt {
  port: 1883
  # QoS 1 messages under way to one client; the federator holds acknowledgements back while others take over.
  max_ack_pending: 10000
}
# The list of connections and their subscriptions. It knows no login: keep it on this machine.
http: "127.0.0.1:8222"
"""


def emqx(*, log_file: str | None = None) -> str:
    """What EMQX 5 needs."""
    _refuse_log_file("emqx", log_file)
    return """\
# Hanse: what lets a federator know of subscriptions at EMQX 5. (Written after the vendor's documentation.)
#
# The federator is started with
#   --interest emqx
# on the broker's own machine: the ACL that EMQX comes with lets only clients there read $SYS topics. Or, slower and
# without gaps, by the list over HTTP, with an API key made in the dashboard:
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
        raise LocalError(f"A log file was named for {vendor}, whose log tells nothing of subscriptions; leave it out.")


# Vendor word to its text.
VENDORS = {"emqx": emqx, "mosquitto": mosquitto, "nats": nats, "rabbitmq": rabbitmq}


def lines(vendor: str, *, log_file: str | None = None) -> str:
    """The configuration of a vendor.

    Raises:
        LocalError: no such vendor.
    """
    text = VENDORS.get(vendor)
    if text is None:
        raise LocalError(
            f"No configuration is known for vendor {vendor!r}; expected one of: {', '.join(sorted(VENDORS))}. "
            "For other brokers use static filters, beacons, or the gateway."
        )
    return text(log_file=log_file)
