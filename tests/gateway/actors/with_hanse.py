"""`hanse.client` as an actor: python -m tests.gateway.actors.with_hanse URL VERSION."""

import asyncio
import json
import sys
from typing import Any

from hanse.client import Client, Connected, Disconnected, Event, Message, Will


def say(**line: Any) -> None:
    """Write one answer."""
    print(json.dumps(line), flush=True)


def shown(message: Message) -> dict[str, Any]:
    """Return a message as JSON."""
    found: dict[str, Any] = {}
    if message.content_type is not None:
        found["content_type"] = message.content_type
    if message.response_topic is not None:
        found["response_topic"] = message.response_topic
    if message.correlation_data is not None:
        found["correlation_data"] = message.correlation_data.decode()
    if message.payload_format_indicator:
        found["payload_format"] = message.payload_format_indicator
    if message.user_properties:
        found["user"] = message.user_properties
    return {
        "topic": message.topic,
        "payload": message.text(),
        "qos": message.qos,
        "retain": message.retain,
        "properties": found,
    }


def on_event(event: Event) -> None:
    """Report connections and their ends."""
    if isinstance(event, Connected):
        say(did="connect", present=event.session_present)
    elif isinstance(event, Disconnected):
        say(closed=True)


async def take(lines: "asyncio.Queue[dict[str, Any]]", version: str) -> None:
    """Take commands until `disconnect`."""
    line = await lines.get()
    will = Will(line["will"]["topic"], line["will"]["payload"].encode(), line["will"]["qos"]) if line["will"] else None
    async with Client(
        sys.argv[1],
        client_id=line["id"],
        version=5 if version == "5" else 4,
        session_expiry_s=0 if line["clean"] else 600,
        will=will,
        on_event=on_event,
    ) as client:

        async def receive() -> None:
            async for message in client.messages():
                say(message=shown(message))

        receiving = asyncio.create_task(receive())
        while (line := await lines.get())["do"] != "disconnect":
            if line["do"] == "subscribe":
                await client.subscribe(line["filter"], qos=line["qos"])
                say(did="subscribe", granted=line["qos"])
            else:
                more: dict[str, Any] = {}
                given = line["properties"]
                if given and version == "5":
                    more = {
                        "content_type": given["content_type"],
                        "response_topic": given["response_topic"],
                        "correlation_data": given["correlation_data"].encode(),
                        "user_properties": [tuple(pair) for pair in given["user"]],
                        "payload_format_indicator": 1,
                        "expiry_s": 100,
                    }
                await client.publish(line["topic"], line["payload"], qos=line["qos"], retain=line["retain"], **more)
                say(did="publish")
        receiving.cancel()
    say(did="disconnect")


async def main() -> None:
    """Read commands in a thread, because standard input may be anything."""
    lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    taking = asyncio.create_task(take(lines, sys.argv[2]))
    loop = asyncio.get_running_loop()
    while text := await loop.run_in_executor(None, sys.stdin.readline):
        lines.put_nowait(json.loads(text))
        if '"disconnect"' in text:
            break
    await taking


if __name__ == "__main__":
    asyncio.run(main())
