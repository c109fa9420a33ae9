import subprocess
import time
from pathlib import Path

import pytest

from hanse.mqtt.certificates import expires_at_s


def certificate(path: Path, days: int) -> Path:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += [
        "-days",
        str(days),
        "-subj",
        "/O=Hanse/CN=site",
        "-keyout",
        str(path.with_suffix(".key")),
        "-out",
        str(path),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.mark.parametrize("days", [2, 40_000])
def test_the_end_of_the_validity_is_read(tmp_path: Path, days: int) -> None:
    """Years until 2049 have two digits in a certificate, later ones have four."""
    path = certificate(tmp_path / "site.crt", days)
    assert expires_at_s(path) == pytest.approx(time.time() + days * 86_400, abs=60)


def test_of_a_chain_the_first_certificate_counts(tmp_path: Path) -> None:
    site, authority = certificate(tmp_path / "site.crt", 2), certificate(tmp_path / "authority.crt", 30)
    chain = tmp_path / "chain.pem"
    chain.write_text("Subject: site\n" + site.read_text() + authority.read_text())
    assert expires_at_s(chain) == expires_at_s(site)


@pytest.mark.parametrize("cut", [0, 100, 400])
def test_a_file_without_a_whole_certificate_is_refused(tmp_path: Path, cut: int) -> None:
    path = certificate(tmp_path / "site.crt", 2)
    lines = path.read_text()
    body = "".join(lines.splitlines()[1:-1])[:cut]
    path.write_text(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n" if cut else "no certificate")
    with pytest.raises(ValueError, match=r"site\.crt"):
        expires_at_s(path)
