"""Topic filters out of the dotted names under which some brokers keep them.

RabbitMQ keeps a filter as an AMQP routing key: `.` between levels, `*` for one, `#` for the rest. NATS keeps it as a
subject: `.` between levels, `*` for one, `>` for the rest, and a lone `/` for what a dotted name cannot hold, an empty
level. Both are turned back here; what no MQTT filter can have led to is refused.
"""

from hanse.errors import RemoteError


def from_routing_key(key: str) -> str:
    """The MQTT filter behind a binding of RabbitMQ's topic exchange.

    A dot in a topic is a slash to RabbitMQ, before anything is kept: `a.b` and `a/b` are one there.

    Raises:
        RemoteError: no filter of MQTT leads to such a key; a client of another protocol made it.
    """
    words = key.split(".")
    if "#" in words[:-1]:
        raise RemoteError("Saw a routing key with `#` before its last word; MQTT has it at the end alone.")
    return "/".join(_level(word, one="*", rest="#") for word in words)


def from_subject(subject: str) -> str:
    """The MQTT filter behind a NATS subscription of an MQTT client.

    Raises:
        RemoteError: no filter of MQTT leads to such a subject; it is one of NATS's own.
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
        raise RemoteError("Saw a dotted name with a character that MQTT has between or in place of levels.")
    return word
