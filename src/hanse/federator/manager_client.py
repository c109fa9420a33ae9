"""Client of the topology manager: one request per connection, JSON both ways, over http or https.

It is our own, because the agent's base install has no HTTP client and needs so little of one.

Rules:

1. Everything is bounded: the time of a request, and the answer's head and body.
2. Of several managers one leads. A 503 that names the leader is followed once; otherwise the next of the list is asked.
   No manager is asked twice in one request. The manager that answered last is asked first the next time.
3. A refusal by the manager is a `ManagerRefused` with the status. If none answers, it is `Unavailable`.
4. Token and credential go only into a header: not into an error, not into a log. A leader's address is followed only if
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

# A manager's whole topology has about 250 bytes per federator. 10,000 federators are the limit of a manager.
BODY_BYTES_MAX = 8 << 20
HEAD_BYTES_MAX = 64 * 1024
_SHOWN_CHARACTERS_MAX = 300


class ManagerRefused(RemoteError):  # noqa: N818 - the name is the event, as in "the manager refused"
    """The manager answered with an error."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"The manager refused with {status}: {detail}")
        self.status = status
        self.detail = detail


def parse_manager(url: str) -> HttpAddress:
    """Return the address in `http://HOST:PORT` or `https://HOST:PORT`.

    Raises:
        LocalError: It is not such an address. The message hides a possible password.
    """
    address = http_address.parse(url, "the manager's address", "write http://HOST:PORT or https://HOST:PORT")
    return dataclasses.replace(address, path=address.path.rstrip("/"))


class ManagerClient:
    """Managers of one federation.

    Args:
        urls: one or more, in the order of the first request.
        ca_file: trusted authorities over https; those of the system if None.
    """

    def __init__(self, urls: Sequence[str], ca_file: Path | None = None) -> None:
        assert urls, "a client needs a manager"
        self._addresses = [parse_manager(url) for url in urls]
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._first = self._addresses[0]

    @property
    def address(self) -> str:
        """Manager that answered last."""
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
        """Send one request to the manager that leads. `shown` is the token or credential.

        Raises:
            ManagerRefused: A manager answered with an error that another would give as well.
            Unavailable: None leads, or none answers.
            LocalError: The TLS files are not usable.
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
        """Apply rule 4."""
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
                    # Do not wait: the answer is here, and a manager that closes TLS slowly is not away.
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
    """Return status and body. Raise ValueError for an answer that is not HTTP or exceeds a limit."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()):
        raise ValueError(f"{first[:60]!r} is not a status line")
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
        raise ValueError(f"{length[:20]!r} is not a length")
    _refuse_size(int(length))
    return int(status), await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """Read a chunked body (RFC 9112, section 7.1); trailers are read and dropped."""
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
