"""Asking an agent on this machine for one of its pages: a GET, and JSON back."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from hanse.errors import Unavailable

_TIMEOUT_S = 5.0
_BODY_BYTES_MAX = 64 * 1024 * 1024


async def get(url: str) -> str:
    """The body of a page, whatever its status; Unavailable where nobody answers."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=_BODY_BYTES_MAX)
            writer.write(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read(-1)
            writer.close()
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{url} does not answer: {error}.") from error
    _, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        raise Unavailable(f"{url} gave no HTTP answer.")
    return body.decode(errors="replace")


async def get_json(url: str) -> Any:  # noqa: ANN401 - whatever the page holds
    """The page as JSON."""
    try:
        return json.loads(await get(url))
    except ValueError as error:
        raise Unavailable(f"{url} gave no JSON: {error}.") from error
