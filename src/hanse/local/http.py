"""HTTP requests to an agent on this machine: GET for a page, POST for a question, JSON in reply.

A URL is http://HOST:PORT/PATH or HOST:PORT/PATH; any other raises LocalError.
"""

import asyncio
import json
from typing import Any

from hanse import http_address
from hanse.errors import LocalError, Unavailable
from hanse.system_errors import reason

_TIMEOUT_S = 5.0
_BODY_BYTES_MAX = 64 * 1024 * 1024


async def get(url: str) -> str:
    """Return the body of a page, whatever its status; raise Unavailable if nothing answers."""
    return await _ask(url, "GET", b"", _TIMEOUT_S)


async def _ask(url: str, method: str, body: bytes, timeout_s: float) -> str:
    address = http_address.parse(url, "the address", "write http://HOST:PORT", takes_query=True)
    if address.is_tls:
        raise LocalError(
            f"the address {str(address)!r} is https://, and these pages are plain; write http://HOST:PORT."
        )
    path = "/" + address.path.lstrip("/") + (f"?{address.query}" if address.query else "")
    host = f"[{address.host}]" if ":" in address.host else address.host
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{address.port}\r\nConnection: close\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port, limit=_BODY_BYTES_MAX)
            writer.write(head.encode() + b"\r\n" + body)
            answer = await reader.read(-1)
            writer.close()
    except TimeoutError:
        raise Unavailable(f"{url} does not answer within {timeout_s:g} s.") from None
    except OSError as error:
        raise Unavailable(f"{url} does not answer: {reason(error)}.") from error
    _, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        raise Unavailable(f"{url} did not answer with HTTP.")
    return body.decode(errors="replace")


async def get_json(url: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the page as JSON."""
    return _parsed(url, await get(url))


async def post_json(url: str, question: object, timeout_s: float) -> Any:  # noqa: ANN401 - any JSON value
    """Return the answer to a question, both as JSON."""
    return _parsed(url, await _ask(url, "POST", json.dumps(question).encode(), timeout_s))


def _parsed(url: str, text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except ValueError as error:
        raise Unavailable(f"{url} did not return JSON: {error}.") from error
