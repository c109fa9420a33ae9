"""A login without rights that subscribes to everything, at real brokers, with and without `import_allow`."""

import subprocess
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from tests.brokers import Mosquitto
from tests.federation import Client, eventually
from tests.federators import LOG_LINES, ring, running
from typer.testing import CliRunner

from hanse.cli import build

pytestmark = pytest.mark.processes
ACL = """\
user hanse-1
topic read $SYS/#
topic readwrite #

user app
topic read plant/#

user nobody
topic write own/nobody
"""


def allowed(acl: Path) -> list[str]:
    """Return the federator's words that `hanse interest config --acl-file` derives."""
    words = ["interest", "config", "--acl-file", str(acl)]
    found = CliRunner().invoke(build(words), words)
    assert found.exit_code == 0, found.output
    (line,) = (line for line in found.output.splitlines() if line.startswith("    "))
    return ["--import-allow", line.strip().strip('",')]


def test_import_allow_from_the_access_list_keeps_out_unreadable_topics(tmp_path: Path) -> None:
    acl, passwords = tmp_path / "acl", tmp_path / "passwords"
    acl.write_text(ACL)
    for path in (acl, passwords):
        path.touch()
        path.chmod(0o600)
    for user in ("hanse-1", "app", "nobody"):
        subprocess.run(["mosquitto_passwd", "-b", str(passwords), user, user], check=True)
    lines = (*LOG_LINES, f"acl_file {acl}", f"password_file {passwords}")
    login = ["--username", "hanse-1", "--password", "hanse-1"]
    with Mosquitto(*LOG_LINES) as one, Mosquitto(*lines, anonymous=False) as two, Client(one.port) as publisher:
        nobody = paho.Client(CallbackAPIVersion.VERSION2, "nobody", protocol=MQTTProtocolVersion.MQTTv5)
        nobody.username_pw_set("nobody", "nobody")
        for words, is_open in ((login, True), ([*login, *allowed(acl)], False)):
            with running(ring([one, two], tmp_path, [[], words])) as federators:
                nobody.connect("127.0.0.1", two.port)
                nobody.loop_start()
                try:
                    eventually(nobody.is_connected, "the login without rights is connected")
                    nobody.subscribe("#", 1)
                    eventually(lambda: federators[0].knows("#" if is_open else "plant/#"), "its interest is known")  # noqa: B023
                    assert federators[0].knows("#") == is_open
                    before = federators[1].counters().get("delivered", 0)
                    publisher.publish("secret/x", b"1")
                    publisher.publish("plant/x", b"2")
                    expected = before + (2 if is_open else 1)
                    eventually(lambda: federators[1].counters().get("delivered", 0) >= expected, "messages arrive")  # noqa: B023
                    assert federators[1].counters()["delivered"] == expected
                finally:
                    nobody.disconnect()
                    nobody.loop_stop()
                    nobody._reset_sockets()
