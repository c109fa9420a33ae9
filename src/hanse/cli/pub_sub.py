"""`hanse pub`, `hanse sub` and `hanse down`, for a federation that `hanse up` started on this machine."""

import asyncio
from pathlib import Path
from typing import Annotated

import mqtt5
import typer

from hanse.errors import LocalError, Unavailable
from hanse.local import state, supervise
from hanse.local.client import Connection

_StatePath = Annotated[Path, typer.Option("--state", help="State file of `hanse up`.")]
_Properties = Annotated[list[str], typer.Option("--property", help="User property, NAME=VALUE; repeatable.")]
_Filters = Annotated[list[str], typer.Option("-t", "--topic", help="Filter to subscribe to; repeatable.")]
_AT = typer.Option(None, help="Number of the broker in the state file, from 0.")
_URL = typer.Option(None, help="URL of the broker, such as mqtt://host:1883, instead of --at.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""

    @app.command()
    def pub(
        *,
        topic: str = typer.Option(..., "-t", "--topic", help="Topic to publish to."),
        message: str = typer.Option("", "-m", "--message", help="Payload as text."),
        qos: int = typer.Option(1, "-q", "--qos", min=0, max=2),
        at: int | None = _AT,
        url: str | None = _URL,
        state_path: _StatePath = state.DEFAULT_PATH,
        retain: bool = typer.Option(False, "-r", "--retain", help="Ask the broker to retain the message."),
        user_property: _Properties = [],  # noqa: B006 - typer copies it
    ) -> None:
        """Publish one message."""
        properties = [_property(text) for text in user_property]
        asyncio.run(_publish(_broker(at, url, state_path), topic, message.encode(), qos, properties, retain=retain))

    @app.command()
    def sub(
        *,
        topic: _Filters,
        qos: int = typer.Option(1, "-q", "--qos", min=0, max=2),
        at: int | None = _AT,
        url: str | None = _URL,
        state_path: _StatePath = state.DEFAULT_PATH,
        count: int | None = typer.Option(None, "-C", "--count", min=1, help="Stop after this many messages."),
        timeout_s: float | None = typer.Option(None, "-W", "--timeout", help="Stop after this many seconds."),
        verbose: bool = typer.Option(False, "-v", "--verbose", help="Print the topic before the payload."),
    ) -> None:
        """Print arriving messages, one line per message."""
        asyncio.run(_listen(_broker(at, url, state_path), topic, qos, count, timeout_s, verbose=verbose))

    @app.command()
    def down(
        state_path: _StatePath = state.DEFAULT_PATH,
    ) -> None:
        """Take down the federation that `hanse up` started."""
        was_up = asyncio.run(supervise.down(state_path))
        typer.echo("The federation is down." if was_up else "The federation had already ended.")


def _broker(at: int | None, url: str | None, state_path: Path) -> str:
    if url is not None and at is not None:
        raise LocalError("Both --at and --url were given; give one of them.")
    return url if url is not None else state.read(state_path).broker_at(at or 0)


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise LocalError(f"Property is {text!r}; expected NAME=VALUE.")
    return name, value


async def _publish(
    url: str, topic: str, payload: bytes, qos: int, properties: list[tuple[str, str]], *, retain: bool
) -> None:
    async with Connection(url) as connection:
        await connection.publish(topic, payload, qos=qos, retain=retain, user_properties=properties)


async def _listen(
    url: str, filters: list[str], qos: int, count: int | None, timeout_s: float | None, *, verbose: bool
) -> None:
    seen = 0
    try:
        async with asyncio.timeout(timeout_s), Connection(url) as connection:
            await connection.subscribe(filters, qos=qos)
            async for message in connection.messages():
                _show(message, verbose=verbose)
                seen += 1
                if seen == count:
                    return
    except TimeoutError as error:
        if count is not None:
            raise Unavailable(f"{seen} of {count} messages arrived within {timeout_s:g} s.") from error


def _show(message: mqtt5.PublishPacket, *, verbose: bool) -> None:
    text = (message.payload or b"").decode(errors="backslashreplace")
    typer.echo(f"{message.topic} {text}" if verbose else text)
