"""Expiry of certificates, read from PEM files without a library for certificates.

Only the validity of the first certificate in a file is read: the one that a service shows to its peers. Python's `ssl`
tells the validity of authorities alone.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_FILE_BYTES_MAX = 1 << 20
_CONTEXT_0, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


def expires_at_s(path: Path) -> float:
    """Return when the first certificate of a PEM file expires, in seconds since 1970.

    Raises:
        ValueError: The file holds no certificate that can be read.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(_FILE_BYTES_MAX).decode("ascii", "replace")
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        raise ValueError(f"{path} holds no certificate in PEM form")
    der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)])
    try:
        return _not_after(der).timestamp()
    except (IndexError, ValueError) as error:
        raise ValueError(f"{path} holds a certificate whose validity cannot be read") from error


def _not_after(der: bytes) -> datetime:
    """Return the end of the validity: Certificate > TBSCertificate > the fifth field (RFC 5280, section 4.1)."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    if tag == _CONTEXT_0:  # the version, which version 1 leaves out
        _, _, end = _element(der, end)
    for _ in range(2):  # behind the serial number: the algorithm and the issuer
        _, _, end = _element(der, end)
    _, at, _ = _element(der, end)
    _, _, at = _element(der, at)  # notBefore
    tag, start, end = _element(der, at)
    text = der[start:end].decode("ascii").removesuffix("Z")
    if tag == _UTC_TIME:
        # Two digits of the year: 50 and more are of the last century (RFC 5280, 4.1.2.5.1).
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag} is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag, the start and the end of the content of the DER element at a position."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(der[start : start + count]), start + count
    if start + length > len(der):
        raise ValueError("an element ends beyond the certificate")
    return tag, start, start + length
