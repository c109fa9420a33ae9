"""Errors of the operating system and of TLS in plain words, without the notation of Python."""

import os
import socket
import ssl


def reason(error: BaseException) -> str:
    """Return the cause, such as "Connection refused"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError) or not error.errno:
        return getattr(error, "strerror", None) or str(error)
    # asyncio writes "Connect call failed" with a tuple into `strerror`.
    return os.strerror(error.errno)
