"""Conversion to topic filters from the dotted names under which some brokers store them.

RabbitMQ stores a filter as an AMQP routing key: `.` between levels, `*` for one, `#` for the rest. NATS stores it as a
subject: `.` between levels, `*` for one, `>` for the rest, and a lone `/` for an empty level, which a dotted name
cannot hold. Both are converted back here. A name that no MQTT filter leads to is refused.
"""

from hanse.errors import RemoteError


def from_routing_key(key: str) -> str:
    """Return the MQTT filter of a binding of RabbitMQ's topic exchange.

    RabbitMQ replaces a dot in a topic by a slash before it stores anything: `a.b` and `a/b` are the same there.

    Raises:
        RemoteError: no MQTT filter leads to such a key; a client of another protocol made it.
    """
    words = key.split(".")
    if "#" in words[:-1]:
        raise RemoteError("Saw a routing key with `#` before its last word; MQTT allows it only at the end.")
    return "/".join(_level(word, one="*", rest="#") for word in words)


def from_subject(subject: str) -> str:
    """Return the MQTT filter of a NATS subscription of an MQTT client.

    Raises:
        RemoteError: no MQTT filter leads to such a subject; it is one of NATS's own.
    """
    words = subject.split(".")
    if "" in words:
        raise RemoteError("Saw a subject with an empty word, which NATS does not allow.")
    if ">" in words[:-1]:
        raise RemoteError("Saw a subject with `>` before its last word.")
    return "/".join("" if word == "/" else _level(word, one="*", rest=">") for word in words)


def _level(word: str, *, one: str, rest: str) -> str:
    if word == one:
        return "+"
    if word == rest:
        return "#"
    if "/" in word or "+" in word or "#" in word:
        raise RemoteError("Saw a dotted name with a level separator or wildcard of MQTT in it.")
    return word
