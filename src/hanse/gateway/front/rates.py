"""Limits on new connections: over all clients, and per address.

Rules: the memory per address is bounded; beyond it, the addresses that have been idle longest are forgotten,
which gives them a fresh allowance and costs nobody else anything. With several workers, each knows how many connections
of an address the others had a moment ago, so that an address may exceed its limit for that moment only.
"""

from typing import Final

# About 200 bytes each.
ADDRESSES_MAX: Final = 100_000


class _Address:
    __slots__ = ("allowance", "at", "open")

    def __init__(self, allowance: float, at: float) -> None:
        self.allowance = allowance
        self.at = at
        self.open = 0


class Rates:
    """Token buckets that hold one second's worth.

    Args:
        rate: connections per second, over all addresses.
        rate_per_address: the same per address; 0 for no limit.
        open_per_address: open connections per address; 0 for no limit.
        is_shared: other workers have connections of the same addresses; `changes` is called again and again.
    """

    def __init__(
        self, rate: float, rate_per_address: float = 0.0, open_per_address: int = 0, *, is_shared: bool = False
    ) -> None:
        self._rate = rate
        self._rate_per_address = rate_per_address
        self._open_per_address = open_per_address
        self._allowance = max(rate, 1.0)
        self._at = float("-inf")
        self._addresses: dict[str, _Address] = {}
        self._is_shared = is_shared
        self._changed: set[str] = set()
        self._elsewhere: dict[str, int] = {}

    def admit(self, address: str, now: float) -> str:
        """Count a new connection; return why it is too many, or an empty text."""
        reason = ""
        if self._rate_per_address or self._open_per_address:
            reason = self._admit_address(address, now)
        if reason:
            return reason
        full = max(self._rate, 1.0)
        self._allowance = min(full, self._allowance + (now - self._at) * self._rate)
        self._at = now
        if self._allowance < 1:
            return "connect_rate"
        self._allowance -= 1
        return ""

    def _admit_address(self, address: str, now: float) -> str:
        rate = self._rate_per_address
        full = max(rate, 1.0)
        known = self._addresses.pop(address, None)
        if known is None:
            known = _Address(full, now)
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses.pop(next(iter(self._addresses)))
        # The end of the dictionary holds those seen last.
        self._addresses[address] = known
        known.open += 1
        if self._is_shared:
            self._changed.add(address)
        if self._open_per_address and known.open + self._elsewhere.get(address, 0) > self._open_per_address:
            return "connections_per_address"
        if rate:
            known.allowance = min(full, known.allowance + (now - known.at) * rate)
            known.at = now
            if known.allowance < 1:
                return "connect_rate_per_address"
            known.allowance -= 1
        return ""

    def release(self, address: str) -> None:
        """Count a connection that has ended."""
        known = self._addresses.get(address)
        if known is not None:
            known.open = max(0, known.open - 1)
            if self._is_shared:
                self._changed.add(address)

    def changes(self) -> dict[str, int]:
        """Return the number of open connections of each address where it changed since the last call."""
        changed, self._changed = self._changed, set()
        addresses = self._addresses
        return {address: addresses[address].open if address in addresses else 0 for address in changed}

    def set_elsewhere(self, opened: dict[str, int]) -> None:
        """Note how many connections other workers have of these addresses."""
        for address, count in opened.items():
            if count:
                self._elsewhere[address] = count
            else:
                self._elsewhere.pop(address, None)
