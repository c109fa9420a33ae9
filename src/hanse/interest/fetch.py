"""Request of a broker's list of subscriptions, over HTTP.

Rules: everything is bounded (time, bytes, pages). No redirect is followed and no proxy is used, so a login reaches only
the host for which it was given. The answer is read and parsed in a thread, because a list of 100,000 rows takes longer
to parse than a publication may wait.
"""

import base64
import http.client
import json
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hanse import http_address
from hanse.errors import LocalError, RemoteError, Unavailable
from hanse.http_address import HttpAddress
from hanse.interest.listing import Listing, Row

# Bytes of all pages together. RabbitMQ uses some 250 bytes per subscription: 100,000 of them are 25 MB.
LIST_BYTES_MAX: Final = 64 * 1024 * 1024
PAGES_MAX: Final = 10_000
# Timeout of the whole list. With a longer one, a federator that should end waits longer for a silent broker.
LIST_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ListAddress(HttpAddress):
    """Address of the list, and the login for it."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None


def parse_list_url(url: str) -> ListAddress:
    """Return the address in `http://HOST:PORT[/PATH]` or `https://…`, without a login.

    Raises:
        LocalError: the text is not such an address. The message hides a possible password.
    """
    expected = (
        "write http://HOST:PORT or https://HOST:PORT, with a path if the list is not at its usual place, and a "
        "login as poll_username and poll_password"
    )
    found = http_address.parse(url, "the list's address", expected, takes_query=True)
    return ListAddress(found.host, found.port, found.is_tls, found.path, found.query)


def fetch(address: ListAddress, listing: Listing, counters: Counter[str]) -> list[Row]:
    """Return the whole list. The function blocks: call it in a thread.

    Raises:
        Unavailable: the list could not be fetched.
        RemoteError: the answer is not such a list.
        LocalError: the login is wrong, or the TLS files are unusable.
    """
    rows: list[Row] = []
    left_bytes = LIST_BYTES_MAX
    until = time.monotonic() + LIST_S
    for page in range(PAGES_MAX):
        body = _get(address, _target(address, listing, page), left_bytes, until - time.monotonic())
        left_bytes -= len(body)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RemoteError(f"{address} sent no JSON: {type(error).__name__}.") from None
        rows += listing.rows(document, counters)
        if not listing.has_more(document):
            return rows
    raise RemoteError(f"{address} has more than {PAGES_MAX} pages.")


def _target(address: ListAddress, listing: Listing, page: int) -> str:
    query = [address.query] if address.query else []
    query += [listing.pages(page)] if listing.pages is not None else []
    return (address.path or listing.path or "/") + ("?" + "&".join(query) if query else "")


def _get(address: ListAddress, target: str, bytes_max: int, timeout_s: float) -> bytes:
    if timeout_s <= 0:
        raise Unavailable(f"{address} did not give its list within {LIST_S:g} s.")
    headers = {"Accept": "application/json", "Connection": "close"}
    if address.username is not None:
        login = f"{address.username}:{address.password or ''}"
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    connection = _connection(address, timeout_s)
    try:
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        body = answer.read(bytes_max + 1)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{address} cannot be reached: {type(error).__name__}: {error}.") from error
    finally:
        connection.close()
    if answer.status in {401, 403}:
        raise LocalError(f"{address} refused the login ({answer.status}); check poll_username and poll_password.")
    if answer.status != 200:
        raise Unavailable(f"{address} answered with {answer.status}; 200 was expected.")
    if len(body) > bytes_max:
        raise RemoteError(f"{address} sent more than {LIST_BYTES_MAX} bytes.")
    return body


def _connection(address: ListAddress, timeout_s: float) -> http.client.HTTPConnection:
    if not address.is_tls:
        return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        context = ssl.create_default_context(cafile=None if address.ca_file is None else str(address.ca_file))
    except (OSError, ssl.SSLError) as error:
        raise LocalError(f"poll_ca_file cannot be used: {error}.") from error
    return http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=context)
