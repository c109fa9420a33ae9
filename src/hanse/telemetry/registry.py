"""Table from kind to contract, and the fields of a contract: encoding and schemas are derived from them."""

import dataclasses
import types
import typing
import zlib
from dataclasses import dataclass

from hanse.errors import LocalError
from hanse.telemetry.contracts import (
    Contract,
    Delivery,
    FlowCount,
    HealthCheck,
    HopTrace,
    LinkCount,
    MeshEvent,
    ResourceSample,
    TopologyEvent,
)

KINDS: dict[str, type[Contract]] = {
    "hop": HopTrace,
    "delivery": Delivery,
    "flow": FlowCount,
    "link": LinkCount,
    "health": HealthCheck,
    "topology": TopologyEvent,
    "mesh": MeshEvent,
    "resource": ResourceSample,
}

FIELD_TYPES = (int, float, bool, str)


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a contract, with the properties that encoding and schemas need."""

    name: str
    type: type
    is_nullable: bool

    @property
    def is_moment(self) -> bool:
        """Return whether the field is a point in time, in microseconds since 1970 UTC."""
        return self.name.endswith("_at_us") or self.name == "at_us"


def contract_of(kind: str) -> type[Contract]:
    """Return the contract of `kind`.

    Raises:
        LocalError: There is no such kind.
    """
    if kind not in KINDS:
        raise LocalError(f"There is no telemetry kind {kind!r}; expected one of {', '.join(KINDS)}.")
    return KINDS[kind]


def kind_of(contract: type[Contract]) -> str:
    """Return the kind of the rows of `contract`."""
    return next(kind for kind, known in KINDS.items() if known is contract)


def fields_of(contract: type) -> tuple[Field, ...]:
    """Return the fields of `contract`. Refuse a type that the encoding does not support."""
    hints = typing.get_type_hints(contract)
    return tuple(_field(contract, field.name, hints[field.name]) for field in dataclasses.fields(contract))


def _field(contract: type, name: str, hint: object) -> Field:
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kept = [member for member in members if member is not types.NoneType]
    if len(kept) != 1 or kept[0] not in FIELD_TYPES:
        raise LocalError(
            f"{contract.__name__}.{name} is {hint}; expected int, float, bool or str, optionally with None."
        )
    return Field(name, kept[0], len(kept) != len(members))


def fingerprint(contract: type) -> int:
    """Return a number that changes with any name, type or nullability, so that two builds cannot misread each other."""
    lines = [f"{field.name}:{field.type.__name__}:{field.is_nullable}" for field in fields_of(contract)]
    return zlib.crc32("\n".join([contract.__name__, *lines]).encode())


FIELDS = {kind: fields_of(contract) for kind, contract in KINDS.items()}
FINGERPRINTS = {kind: fingerprint(contract) for kind, contract in KINDS.items()}
