"""Tokens that admit federators, and credentials that identify them. No secret is stored, or shown twice.

A *token* is made by an operator: `hanse-<id>-<secret>`. Its 32 random bytes need no slow hash; SHA-256 is stored. Role
`join` admits a federator, `read` lets a client read, `gateway` lets a gateway report, `admin` lets an operator revoke a
federator over HTTP.

A *credential* is what a federator gets when it joins, and shows afterwards. It is not stored: it is a MAC, under the
federation's secret, of the id, the address and the token that admitted it. A manager that lost its store still
recognises it, if the secret was given as a setting. A stolen one is of use only for that id at that address.
"""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from hanse.errors import RemoteError
from hanse.topology.store import Store, Token

ROLES = ("join", "read", "gateway", "admin")
_TOKEN = re.compile(r"hanse-([0-9a-f]{8})-([A-Za-z0-9_-]{43})")
_CREDENTIAL = re.compile(r"hanse-fed-([0-9]{1,10})-([0-9a-f]{8}|open)-([0-9a-f]{64})")
_NOTHING = "0" * 64


class Forbidden(RemoteError):  # noqa: N818 - the name is the state, as in "401" and "403"
    """No token, or an invalid one. The client does not learn which of the two, and why."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Credential in its parts, not yet checked."""

    id: int
    token: str | None
    mac: str


def make_token(role: str, *, label: str, now_s: float, ttl_s: float | None, uses: int | None) -> tuple[Token, str]:
    """Return a new token as it is stored, and the text to show once."""
    assert role in ROLES
    identity, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    expires_s = None if ttl_s is None else now_s + ttl_s
    token = Token(identity, hash_secret(secret), role, label, now_s, expires_s, uses)
    return token, f"hanse-{identity}-{secret}"


def hash_secret(secret: str) -> str:
    """Return the stored form of a token's secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def check_token(store: Store, text: str, roles: tuple[str, ...], now_s: float) -> Token:
    """Return the token if it is valid for one of the roles now; nothing is spent. Raise `Forbidden` otherwise."""
    match = _TOKEN.fullmatch(text)
    found = await store.find_token(match[1]) if match else None
    # The comparison runs even if there is nothing to compare with, so an unknown id takes as long as a wrong secret.
    is_right = hmac.compare_digest(hash_secret(match[2] if match else ""), found.hash if found else _NOTHING)
    if found is None or not is_right or found.role not in roles:
        raise Forbidden("The token is not valid here; ask the operator for one (hanse token create).")
    is_over = found.expires_s is not None and found.expires_s <= now_s
    if found.is_revoked or is_over or (found.uses_left is not None and found.uses_left <= 0):
        raise Forbidden("The token is expired, used up or revoked; ask the operator for another (hanse token create).")
    return found


def is_credential(text: str) -> bool:
    """Return whether the text has the form of a credential, rather than of a token."""
    return _CREDENTIAL.fullmatch(text) is not None


def parse_credential(text: str) -> Credential:
    """Split a credential into its parts. Raise `Forbidden` for a malformed one."""
    match = _CREDENTIAL.fullmatch(text)
    if match is None:
        raise Forbidden("The credential is not valid; join again.")
    return Credential(int(match[1]), None if match[2] == "open" else match[2], match[3])


class Credentials:
    """Maker and checker of credentials and announcements' MACs under the federation's secret."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        assert len(secret) >= 16, "a secret of fewer than 16 bytes can be guessed"
        self._secret = secret

    def issue(self, node: int, key: str, token: str | None) -> str:
        """Return the credential of federator `node` at the address `key`, admitted by `token`."""
        text = f"{node}\n{key}\n{token or 'open'}"
        mac = hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()
        return f"hanse-fed-{node}-{token or 'open'}-{mac}"

    def is_valid(self, text: str, node: int, key: str) -> bool:
        """Return whether the text is the credential of this federator, in constant time."""
        shown = parse_credential(text)
        return hmac.compare_digest(text.encode(), self.issue(node, key, shown.token).encode())


def announcement_mac(credential: str, payload: bytes) -> str:
    """Return the MAC that proves to a federator that an announcement comes from the manager, not from a client."""
    return base64.b64encode(hmac.new(credential.encode(), payload, hashlib.sha256).digest()).decode()
