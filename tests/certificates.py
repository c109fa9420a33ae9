"""Certificates for tests, made with openssl."""

import subprocess
from pathlib import Path


def openssl(*words: str | Path) -> None:
    """Run openssl."""
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def authority(folder: Path, name: str) -> None:
    """Make a certificate authority: NAME.crt and NAME.key."""
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt")  # fmt: skip


def certificate(folder: Path, ca: str, name: str) -> None:
    """Make a certificate of this machine, signed by an authority of the folder: NAME.crt and NAME.key."""
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
            "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr")  # fmt: skip
    extensions = folder / f"{name}.ext"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / f"{ca}.crt", "-CAkey",
            folder / f"{ca}.key", "-CAcreateserial", "-days", "2", "-extfile", extensions,
            "-out", folder / f"{name}.crt")  # fmt: skip
