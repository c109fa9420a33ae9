"""Asking the topology manager: one request a connection, JSON both ways, over http or https.

A client of our own, because the agent's base install has none and needs so little of one.

Rules:

1. Everything is bounded: the time of a request, the answer's head and body.
2. Of several managers one leads. A 503 that names the leader is followed once; else the next of the list is asked;
   nobody is asked twice in one request. Whoever answered last is asked first the next time.
3. What the manager refuses is a `ManagerRefused` with the status; when none answers it is `Unavailable`.
4. Token and credential go into a header and nowhere else: no error, no log. A leader's address is followed only if
   it is as safe as the one that named it: https stays https.
"""

import asyncio
import dataclasses
import json
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hanse import __version__, http_address
from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.http_address import HttpAddress
from hanse.mqtt.tls import TlsSettings, client_context

# A manager's whole topology has about 250 bytes a federator; 10,000 are the most that one takes.
BODY_BYTES_MAX = 8 << 20
HEAD_BYTES_MAX = 64 * 1024
_SHOWN_CHARACTERS_MAX = 300


class ManagerRefused(RemoteError):  # noqa: N818 - what happened, as in "the manager refused"
    """The manager answered, and not with what was asked for."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"The manager refused with {status}: {detail}")
        self.status = status
        self.detail = detail


def parse_manager(url: str) -> HttpAddress:
    """The address in `http://HOST:PORT` or `https://HOST:PORT`.

    Raises:
        LocalError: It is none; what may be a password is not shown.
    """
    address = http_address.parse(url, "the manager's address", "write http://HOST:PORT or https://HOST:PORT")
    return dataclasses.replace(address, path=address.path.rstrip("/"))


class ManagerClient:
    """The managers of one federation.

    Args:
        urls: one or more, in the order in which they are asked first.
        ca_file: whom to trust over https; the system's authorities if None.
    """

    def __init__(self, urls: Sequence[str], ca_file: Path | None = None) -> None:
        assert urls, "a client needs a manager"
        self._addresses = [parse_manager(url) for url in urls]
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._first = self._addresses[0]

    @property
    def address(self) -> str:
        """The manager that answered last."""
        return str(self._first)

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        shown: str | None,
        timeout_s: float,
    ) -> dict[str, Any]:
        """One request, at whichever manager leads. `shown` is the token or credential.

        Raises:
            ManagerRefused: A manager answered with an error that another would give too.
            Unavailable: None leads, or none answers.
            LocalError: The files for TLS cannot be used.
        """
        waiting = [self._first, *(one for one in self._addresses if one != self._first)]
        asked: set[HttpAddress] = set()
        failures: list[str] = []
        while waiting:
            address = waiting.pop(0)
            if address in asked:
                continue
            asked.add(address)
            try:
                status, document = await self._ask_one(address, method, path, body, shown, timeout_s)
            except Unavailable as error:
                failures.append(str(error))
                continue
            if status < 300:
                self._first = address
                return document
            detail = str(document.get("detail") or document.get("title") or "no reason was given")
            if status < 500:
                self._first = address
                raise ManagerRefused(status, detail[:_SHOWN_CHARACTERS_MAX])
            failures.append(f"{address} answered {status}: {detail[:_SHOWN_CHARACTERS_MAX]}")
            leader = self._leader_of(document, address)
            if leader is not None:
                waiting.insert(0, leader)
        raise Unavailable(" ".join(failures))

    def _leader_of(self, document: Mapping[str, object], named_by: HttpAddress) -> HttpAddress | None:
        """Rule 4."""
        url = document.get("leader")
        if not isinstance(url, str):
            return None
        try:
            leader = parse_manager(url)
        except LocalError:
            return None
        return leader if leader.is_tls or not named_by.is_tls else None

    async def _ask_one(
        self,
        address: HttpAddress,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        shown: str | None,
        timeout_s: float,
    ) -> tuple[int, dict[str, Any]]:
        payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {address.host}:{address.port}"]
        head += [f"User-Agent: hanse-federator/{__version__}", "Accept: application/json", "Connection: close"]
        if shown is not None:
            head.append(f"Authorization: Bearer {shown}")
        if body is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        request = "\r\n".join([*head, "", ""]).encode("latin-1", "replace") + payload
        context = self._context() if address.is_tls else None
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=context, limit=HEAD_BYTES_MAX
                )
                try:
                    writer.write(request)
                    status, answer = await _read_answer(reader)
                finally:
                    # Not waited for: the answer is here, and a manager slow to say goodbye over TLS is not away.
                    writer.close()
        except TimeoutError:
            raise Unavailable(f"{address} did not answer within {timeout_s:g} s.") from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason or str(error)
            raise Unavailable(f"TLS with {address} failed: {reason}; check manager_ca_file.") from None
        except asyncio.IncompleteReadError:
            raise Unavailable(f"{address} closed the connection before it had answered.") from None
        except (OSError, asyncio.LimitOverrunError, ValueError) as error:
            raise Unavailable(f"{address} gave no usable answer: {error}.") from None
        return status, _read_json(address, status, answer)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = client_context(TlsSettings(ca_file=self._ca_file))
        return self._tls


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body; a ValueError where it is not HTTP or goes beyond a limit."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
        raise ValueError(f"{first[:60]!r} is no status line")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return int(status), await _read_chunks(reader)
    length = headers.get("content-length")
    if length is None:
        body = await reader.read(BODY_BYTES_MAX + 1)
        while len(body) <= BODY_BYTES_MAX and (more := await reader.read(HEAD_BYTES_MAX)):
            body += more
        _refuse_size(len(body))
        return int(status), body
    if not (length.isascii() and length.isdigit()) or len(length) > 12:
        raise ValueError(f"{length[:20]!r} is no length")
    _refuse_size(int(length))
    return int(status), await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """RFC 9112, section 7.1; trailers are read and dropped."""
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";", 1)[0].strip()[:8] or b"x", 16)
        if size == 0:
            while (await reader.readuntil(b"\r\n")) != b"\r\n":
                pass
            return bytes(body)
        _refuse_size(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readexactly(2)


def _refuse_size(size: int) -> None:
    if size > BODY_BYTES_MAX:
        raise ValueError(f"a body of more than {BODY_BYTES_MAX} bytes")


def _read_json(address: HttpAddress, status: int, answer: bytes) -> dict[str, Any]:
    try:
        document = json.loads(answer) if answer else {}
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    if status < 300:
        raise Unavailable(f"{address} answered with no JSON object; is it a topology manager?")
    return {}
