"""Admission: the addresses that the manager may listen on, and the rights of its clients.

Rules:

1. The manager listens beyond loopback only with TLS and tokens, unless the operator gives `--insecure`.
2. If tokens are required, joining needs a `join` token (or the credential of an earlier join), acting as a federator
   needs its credential, reporting as a gateway needs a `gateway` token, and reading needs a `read` token or any
   credential. `/healthz` is open.
3. If tokens are not required, a token or credential in a request must still be valid.
4. Every action of an operator needs an `admin` token, always. An `admin` token may also read.
5. An expelled federator is refused at its address, with any token or credential that was made before its expulsion.
"""

import ipaddress
import time
from pathlib import Path

from hanse.errors import LocalError
from hanse.topology.model import Federator, State, Topology
from hanse.topology.store import Revocation, Store, Token
from hanse.topology.tokens import Credentials, Forbidden, check_token, is_credential, parse_credential


class Unknown(Forbidden):
    """The request has no token or credential where one is needed."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener there. A name other than `localhost` may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_listen(host: str, certificate: Path | None, key: Path | None, *, require_token: bool, insecure: bool) -> bool:
    """Apply rule 1, and return whether tokens are required."""
    if (certificate is None) != (key is None):
        raise LocalError("Only one of tls_certificate and tls_key is given; give both or neither.")
    if is_loopback(host) or insecure:
        return require_token
    if certificate is None:
        raise LocalError(
            f"The manager would listen on {host}, beyond this machine, without TLS; give --tls-certificate and "
            "--tls-key, or give --insecure if the network is trusted."
        )
    return True


async def expel(store: Store, one: Federator, *, keep_token: bool) -> str | None:
    """Store that a federator is expelled, and close its token. Return the token's id if it still admitted others.

    The expelled operator knows the token. If it stayed open, it could admit the federator at another address.
    """
    now_s = time.time()
    await store.add_revocation(Revocation(one.key, one.id, now_s))
    if keep_token or one.token is None or not await store.close_token(one.token, now_s):
        return None
    return one.token


class Gate:
    """Check of rules 2 and 3."""

    __slots__ = ("_credentials", "_is_required", "_store")

    def __init__(self, store: Store, credentials: Credentials, *, is_required: bool) -> None:
        self._store = store
        self._credentials = credentials
        self._is_required = is_required

    async def join(self, shown: str | None, key: str, topology: Topology, now_s: float) -> Token | None:
        """Admit the federator of a broker, and return the token to spend, or None. Raise `Forbidden` otherwise."""
        if shown is None:
            self._without()
            await self._refuse_expelled(key, None)
            return None
        if is_credential(shown):
            known = topology.by_key(key)
            node = parse_credential(shown).id if known is None else known.id
            await self.federator(shown, node, key, topology)
            return None
        token = await check_token(self._store, shown, ("join",), now_s)
        await self._refuse_expelled(key, token)
        return token

    async def federator(self, shown: str | None, node: int, key: str, topology: Topology) -> None:
        """Check that the client is federator `node` at `key`. Raise `Forbidden` otherwise."""
        if shown is None:
            self._without()
            return
        if not is_credential(shown) or not self._credentials.is_valid(shown, node, key):
            raise Forbidden(f"The credential is not that of federator {node}; join again.")
        token = parse_credential(shown).token
        found = await self._store.find_token(token) if token is not None else None
        one = topology.federators.get(node)
        if (found is not None and found.is_revoked) or (one is not None and one.state is State.REVOKED):
            raise Forbidden(f"Federator {node} was revoked; ask the operator for a token.")
        await self._refuse_expelled(key, found)

    async def operator(self, shown: str | None, now_s: float) -> Token:
        """Check rule 4. Raise `Forbidden` if it is broken."""
        if shown is None:
            raise Unknown(
                "This request needs an admin token: Authorization: Bearer TOKEN (hanse token create --role admin)."
            )
        return await check_token(self._store, shown, ("admin",), now_s)

    async def reader(self, shown: str | None, topology: Topology, now_s: float) -> None:
        """Check that the client may read. Raise `Forbidden` otherwise."""
        if shown is None:
            self._without()
        elif is_credential(shown):
            node = parse_credential(shown).id
            one = topology.federators.get(node)
            if one is None:
                raise Forbidden("The credential is not valid; join again.")
            await self.federator(shown, node, one.key, topology)
        else:
            await check_token(self._store, shown, ("read", "join", "gateway", "admin"), now_s)

    async def gateway(self, shown: str | None, now_s: float) -> None:
        """Check that the client may report as a gateway. Raise `Forbidden` otherwise."""
        if shown is None:
            self._without()
        else:
            await check_token(self._store, shown, ("gateway", "admin"), now_s)

    async def _refuse_expelled(self, key: str, token: Token | None) -> None:
        """Check rule 5."""
        expelled = await self._store.find_revocation(key)
        if expelled is not None and expelled.covers(token):
            raise Forbidden(f"Federator {expelled.id} was revoked; ask the operator for a new token.")

    def _without(self) -> None:
        if self._is_required:
            raise Unknown("This request needs a token: Authorization: Bearer TOKEN (hanse token create makes one).")
