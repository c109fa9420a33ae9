"""TLS for both sides, fail closed: a peer is always verified, and an unusable file stops the start.

Rules: TLS 1.2 or later. No switch turns verification off. A server that has a CA demands a certificate of every client
(links are mutual). A message names the file and never its content.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from hanse.errors import LocalError
from hanse.system_errors import reason


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files in PEM format.

    Args:
        ca_file: trusted authorities. A client without one trusts the system's authorities; a server without one accepts
            clients without a certificate.
        cert_file, key_file: certificate and key of this side.
        server_name: name that the server's certificate must hold, if it is not the host in the address.
        prefix: what precedes `ca_file` in the names of the operator's settings, such as "link_".
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    server_name: str | None = None
    prefix: str = ""


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context for dialling, which verifies the server, including its name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ca_file is None:
        context.load_default_certs()
    return _prepared(context, settings)


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context for listening."""
    if settings.cert_file is None:
        raise LocalError(
            f"a TLS listener needs a certificate; give {settings.prefix}cert_file and {settings.prefix}key_file."
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepared(context, settings)
    if settings.ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _prepared(context: ssl.SSLContext, settings: TlsSettings) -> ssl.SSLContext:
    prefix = settings.prefix
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for name in ("ca_file", "cert_file", "key_file"):
        path = getattr(settings, name)
        if path is not None and not Path(path).is_file():
            raise LocalError(f"{prefix}{name} is {path}, which does not exist; give a PEM file.")
    if settings.key_file is not None and settings.cert_file is None:
        raise LocalError(
            f"{prefix}key_file is {settings.key_file} and {prefix}cert_file is missing; a key needs its certificate."
        )
    try:
        if settings.ca_file is not None:
            # In place of the system's authorities, not in addition: a private federation trusts only its own.
            # An empty file raises here, so a wrong CA never means "no check".
            context.load_verify_locations(settings.ca_file)
    except (ssl.SSLError, OSError) as error:
        raise LocalError(
            f"{prefix}ca_file {settings.ca_file} cannot be used: {reason(error)}; give CA certificates in PEM."
        ) from error
    try:
        if settings.cert_file is not None:
            # An empty password instead of none, because OpenSSL would ask on the terminal.
            context.load_cert_chain(settings.cert_file, settings.key_file, password=settings.key_password or "")
    except (ssl.SSLError, OSError) as error:
        raise LocalError(
            f"{prefix}cert_file {settings.cert_file} with key_file {settings.key_file} cannot be used: "
            f"{reason(error)}; give a certificate and its own key in PEM, and the key's password if it has one."
        ) from error
    return context
