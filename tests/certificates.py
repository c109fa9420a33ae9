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


def certificate(
    folder: Path, ca: str, name: str, *, names: str = "DNS:localhost,IP:127.0.0.1", usage: str = ""
) -> None:
    """Make a certificate of this machine, signed by an authority of the folder: NAME.crt and NAME.key.

    Args:
        folder: where the files are.
        ca: name of the authority.
        name: name of the files and of the subject.
        names: the alternative names.
        usage: the extended key usage; none if empty.
    """
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
            "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr")  # fmt: skip
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\n" + (f"extendedKeyUsage={usage}\n" if usage else ""))
    openssl("x509", "-req", "-in", folder / f"{name}.csr", "-CA", folder / f"{ca}.crt", "-CAkey",
            folder / f"{ca}.key", "-CAcreateserial", "-days", "2", "-extfile", extensions,
            "-out", folder / f"{name}.crt")  # fmt: skip
