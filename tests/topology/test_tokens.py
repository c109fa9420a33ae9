import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.topology.store import Token
from hanse.topology.store_sqlite import SqliteStore
from hanse.topology.tokens import (
    Credentials,
    Forbidden,
    announcement_mac,
    check_token,
    is_credential,
    make_token,
    parse_credential,
)

Check = Callable[[str, tuple[str, ...], float], Token]


def with_tokens(tmp_path: Path, *tokens: Token) -> Check:
    def check(text: str, roles: tuple[str, ...], now_s: float) -> Token:
        async def body() -> Token:
            store = await SqliteStore.open(tmp_path / "topology.db")
            try:
                for token in tokens:
                    if await store.find_token(token.id) is None:
                        await store.add_token(token)
                return await check_token(store, text, roles, now_s)
            finally:
                await store.close()

        result: Awaitable[Token] = body()
        return asyncio.run(result)  # type: ignore[arg-type]

    return check


def make(role: str = "join", ttl_s: float | None = None, uses: int | None = 1) -> tuple[Token, str]:
    return make_token(role, label="", now_s=1000.0, ttl_s=ttl_s, uses=uses)


def test_a_token_is_stored_without_its_secret() -> None:
    token, text = make()
    secret = text.split("-", 2)[2]
    assert secret not in repr(token)
    assert text.startswith(f"hanse-{token.id}-")


def test_a_valid_token_is_accepted(tmp_path: Path) -> None:
    token, text = make()
    assert with_tokens(tmp_path, token)(text, ("join",), 1001.0) == token


@pytest.mark.parametrize("change", ["wrong secret", "unknown id", "garbage", "empty", "wrong role", "long"])
def test_every_invalid_token_is_refused_with_the_same_message(tmp_path: Path, change: str) -> None:
    token, text = make("read" if change == "wrong role" else "join")
    shown = {
        "wrong secret": text[:-3] + ("AAA" if not text.endswith("AAA") else "BBB"),
        "unknown id": "hanse-00000000-" + text.split("-", 2)[2],
        "garbage": "../../etc/passwd",
        "empty": "",
        "wrong role": text,
        "long": text + "x" * 10_000,
    }[change]
    with pytest.raises(Forbidden, match="not valid here"):
        with_tokens(tmp_path, token)(shown, ("join",), 1001.0)


def test_an_expired_revoked_or_used_token_is_refused(tmp_path: Path) -> None:
    (expired, a), (revoked, b), (used, c) = make(ttl_s=5.0), make(), make()
    revoked, used = replace(revoked, is_revoked=True), replace(used, uses_left=0)
    check = with_tokens(tmp_path, expired, revoked, used)
    for text in (a, b, c):
        with pytest.raises(Forbidden, match="expired, used up or revoked"):
            check(text, ("join",), 1005.0)


def test_a_credential_is_valid_for_one_id_at_one_address() -> None:
    credentials = Credentials(b"s" * 32)
    text = credentials.issue(7, "mqtt://b:1883", "0a0a0a0a")
    assert is_credential(text)
    assert parse_credential(text).token == "0a0a0a0a"
    assert credentials.is_valid(text, 7, "mqtt://b:1883")
    assert not credentials.is_valid(text, 8, "mqtt://b:1883")
    assert not credentials.is_valid(text, 7, "mqtt://c:1883")
    assert not Credentials(b"t" * 32).is_valid(text, 7, "mqtt://b:1883")


def test_attack_the_token_in_a_credential_cannot_be_exchanged() -> None:
    credentials = Credentials(b"s" * 32)
    text = credentials.issue(7, "k", "0a0a0a0a").replace("0a0a0a0a", "0b0b0b0b")
    assert not credentials.is_valid(text, 7, "k")


@given(st.text(max_size=100))
def test_only_the_issued_text_is_a_valid_credential(text: str) -> None:
    credentials = Credentials(b"s" * 32)
    try:
        assert not credentials.is_valid(text, 1, "k")
    except Forbidden:
        assert not is_credential(text)


def test_an_announcements_mac_needs_the_credential() -> None:
    assert announcement_mac("a", b"x") != announcement_mac("b", b"x")
    assert announcement_mac("a", b"x") != announcement_mac("a", b"y")
