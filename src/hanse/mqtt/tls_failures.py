"""Sentences about connections that TLS prevents: what was seen, and which side must change what.

Pure: errors of `ssl` and of the system go in, and our own errors come out.
"""

import ssl

from hanse.errors import HanseError, LocalError, Unavailable
from hanse.mqtt.tls import TlsSettings
from hanse.system_errors import reason

# Numbers of OpenSSL (x509_vfy.h): what the verification of a certificate found.
NOT_YET_VALID, EXPIRED = 9, 10
UNSUITABLE_PURPOSE = 26
_OF_ANOTHER_NAME = frozenset({62, 63, 64})  # a host name, a mail address, an IP address


def cannot_connect(where: str, error: OSError, tls: TlsSettings | None) -> HanseError:
    """Return the error for a connection that could not be opened; `tls` is None for a plain address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return LocalError(f"the certificate of {where} is not trusted: {_untrusted(error, tls or TlsSettings())}.")
    if isinstance(error, ssl.SSLError):
        if "ALERT" in (error.reason or ""):
            return LocalError(
                f"TLS with {where} failed: {reason(error)}; the other side refused, and its log says why."
            )
        return LocalError(f"TLS with {where} failed: {reason(error)}; is it a TLS port?")
    question = "" if tls is None or isinstance(error, ConnectionRefusedError) else " (is it a TLS port?)"
    return Unavailable(f"{where} cannot be reached: {reason(error)}{question}.")


def what_to_check(port: str, tls: TlsSettings | None) -> str:
    """Return the advice for a connection that the peer closed before it answered; `port` is such as "a link port"."""
    if tls is None:
        return f"is it {port}, and a plain one?"
    if tls.cert_file is None:
        return f"is it {port}, and does it want a client certificate ({tls.prefix}cert_file)?"
    return (
        f"is it {port}? If it is, it may have refused {tls.prefix}cert_file: its log says why. It must trust the "
        "authority of this certificate, which needs the extended key usage clientAuth if it names any."
    )


def refused_handshake(error: ssl.SSLError) -> tuple[str, str]:
    """Return the security event and the reason for a peer whose handshake failed at this side's listener."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return "tls_refused", reason(error)
    if error.verify_code == UNSUITABLE_PURPOSE:
        return "tls_wrong_purpose", f"{reason(error)}: the peer's certificate lacks the extended key usage clientAuth"
    return "tls_unknown_authority", reason(error) or str(error)


def _untrusted(error: ssl.SSLCertVerificationError, tls: TlsSettings) -> str:
    """Return the finding and its remedy."""
    ca = f"{tls.prefix}ca_file"
    if error.verify_code in _OF_ANOTHER_NAME:
        cure = "give the other side a certificate with the name that is dialled (an IP address as an address)"
    elif error.verify_code == UNSUITABLE_PURPOSE:
        cure = "give the other side a certificate with the extended key usage serverAuth"
    elif error.verify_code in {NOT_YET_VALID, EXPIRED}:
        cure = "renew the other side's certificate, or correct the clock"
    elif tls.ca_file is None:
        cure = f"no {ca} is given, so the system's authorities count; give the authority of that certificate as {ca}"
    else:
        cure = f"check that {ca} ({tls.ca_file}) holds the authority of that certificate"
    return f"{reason(error)}; {cure}"
