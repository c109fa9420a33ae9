"""The exchanges of QoS 1 and 2 towards one client, and the packet identifiers of both sides.

Rules:

1. An exchange that a lost broker began is finished by the gateway: the client's acknowledgement is swallowed, and its
   PUBREC is answered with PUBREL.
2. An identifier that is in use at the client is not used for another publication. The broker's identifier then differs
   from the client's, until the exchange is over.
"""

from typing import Final

# States of an exchange. SENT_1 and SENT_2: PUBLISH of QoS 1 or 2. RECEIVED: PUBREC. RELEASED: PUBREL.
SENT_1: Final = 1
SENT_2: Final = 2
RECEIVED: Final = 3
RELEASED: Final = 4

IDS: Final = 65_535


class Deliveries:
    """State of the exchanges by the client's identifier.

    Attributes:
        live: exchanges with the current broker.
        own: exchanges that the gateway finishes: of lost brokers, and of what it replayed.
        to_client, to_broker: identifiers that differ, in both directions.
        swallowed: broker's identifiers of QoS 2 publications that the client does not see.
    """

    __slots__ = ("_next", "live", "own", "swallowed", "to_broker", "to_client")

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.own: dict[int, int] = {}
        self.to_client: dict[int, int] = {}
        self.to_broker: dict[int, int] = {}
        self.swallowed: set[int] = set()
        self._next = IDS

    @property
    def is_plain(self) -> bool:
        """Return whether all identifiers are the same on both sides."""
        return not (self.own or self.to_client or self.swallowed)

    def __len__(self) -> int:
        return len(self.live) + len(self.own)

    def free_id(self) -> int:
        """Return an identifier that is not in use at the client; 0 if all are."""
        if len(self) >= IDS:
            return 0
        one = self._next
        while one in self.live or one in self.own:
            one = one - 1 or IDS
        self._next = one - 1 or IDS
        return one

    def begin(self, broker_id: int, qos: int) -> int:
        """Note a publication of the broker; return the client's identifier."""
        client_id = self.to_client.get(broker_id, 0)
        if not client_id:
            client_id = broker_id
            if broker_id in self.own or broker_id in self.to_broker:
                client_id = self.free_id()
                self.to_client[broker_id] = client_id
                self.to_broker[client_id] = broker_id
        self.live[client_id] = qos
        return client_id

    def begin_own(self, qos: int) -> int:
        """Note a publication that the gateway itself sends; return its identifier, or 0 if none is free."""
        client_id = self.free_id()
        if client_id:
            self.own[client_id] = qos
        return client_id

    def finish(self, client_id: int) -> int:
        """Forget a live exchange; return the broker's identifier."""
        self.live.pop(client_id, None)
        broker_id = self.to_broker.pop(client_id, 0)
        if not broker_id:
            return client_id
        del self.to_client[broker_id]
        return broker_id

    def orphan(self) -> list[int]:
        """Take over all exchanges of a lost broker; return the identifiers for which PUBREL must go to the client."""
        released = []
        for client_id, state in self.live.items():
            if state == RECEIVED:
                released.append(client_id)
                self.own[client_id] = RELEASED
            else:
                self.own[client_id] = state
        self.live.clear()
        self.to_client.clear()
        self.to_broker.clear()
        self.swallowed.clear()
        return released
