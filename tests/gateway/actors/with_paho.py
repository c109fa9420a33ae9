"""paho-mqtt as an actor: python -m tests.gateway.actors.with_paho URL VERSION."""

import json
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

_LOCK = threading.Lock()


def say(**line: Any) -> None:
    """Write one answer."""
    with _LOCK:
        print(json.dumps(line), flush=True)


def properties_of(given: dict[str, Any]) -> Properties:
    """Return the properties of a publication."""
    made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    made.ContentType = given["content_type"]
    made.ResponseTopic = given["response_topic"]
    made.CorrelationData = given["correlation_data"].encode()
    made.PayloadFormatIndicator = 1
    made.MessageExpiryInterval = 100
    made.UserProperty = [tuple(pair) for pair in given["user"]]
    return made


def shown(message: paho.MQTTMessage) -> dict[str, Any]:
    """Return a message as JSON."""
    found: dict[str, Any] = {}
    given: Any = message.properties
    for name, key in (("ContentType", "content_type"), ("ResponseTopic", "response_topic")):
        if hasattr(given, name):
            found[key] = getattr(given, name)
    if hasattr(given, "CorrelationData"):
        found["correlation_data"] = given.CorrelationData.decode()
    if hasattr(given, "PayloadFormatIndicator"):
        found["payload_format"] = given.PayloadFormatIndicator
    if hasattr(given, "UserProperty"):
        found["user"] = given.UserProperty
    return {
        "topic": message.topic,
        "payload": message.payload.decode(),
        "qos": message.qos,
        "retain": bool(message.retain),
        "properties": found,
    }


def main() -> None:
    """Take commands until `disconnect`."""
    url, version = urlsplit(sys.argv[1]), sys.argv[2]
    protocol = {
        "3": MQTTProtocolVersion.MQTTv31,
        "4": MQTTProtocolVersion.MQTTv311,
        "5": MQTTProtocolVersion.MQTTv5,
    }[version]
    client: paho.Client | None = None
    for text in sys.stdin:
        line = json.loads(text)
        if line["do"] == "connect":
            transport = "websockets" if url.scheme == "ws" else "tcp"
            clean = None if version == "5" else line["clean"]
            client = paho.Client(
                CallbackAPIVersion.VERSION2,
                client_id=line["id"],
                protocol=protocol,
                transport=transport,  # type: ignore[arg-type]
                clean_session=clean,
                reconnect_on_failure=False,
            )
            client.on_connect = lambda _c, _u, flags, code, _p: (
                say(error=str(code)) if code.is_failure else say(did="connect", present=flags.session_present)
            )
            client.on_subscribe = lambda _c, _u, _m, codes, _p: say(did="subscribe", granted=codes[0].value)
            client.on_publish = lambda *_: say(did="publish")
            client.on_message = lambda _c, _u, message: say(message=shown(message))
            client.on_disconnect = lambda *_: say(closed=True)
            if line["will"]:
                client.will_set(line["will"]["topic"], line["will"]["payload"], line["will"]["qos"])
            more: dict[str, Any] = {}
            if version == "5":
                more["clean_start"] = line["clean"]
                if not line["clean"]:
                    more["properties"] = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
                    more["properties"].SessionExpiryInterval = 600
            client.connect(url.hostname or "", url.port or 0, **more)
            client.loop_start()
            continue
        assert client is not None
        if line["do"] == "subscribe":
            client.subscribe(line["filter"], line["qos"])
        elif line["do"] == "publish":
            given = properties_of(line["properties"]) if version == "5" and line["properties"] else None
            client.publish(line["topic"], line["payload"], line["qos"], line["retain"], given)
        else:
            client.disconnect()
            client.loop_stop()
            say(did="disconnect")
            return


if __name__ == "__main__":
    main()
