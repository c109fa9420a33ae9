"""Accepted, ignored or refused with a clear error and a counter; nothing else happens; memory grows by at most 20 MB;
nothing of it is forwarded.

The target is a settings file. Any error in a file is one sentence that names it, and never a half-read file.
"""

from pathlib import Path

from hypothesis import strategies as st
from tests.fuzz.fuzzing import fuzz

from hanse.errors import LocalError
from hanse.federator.settings import FederatorSettings
from hanse.settings import read_settings, settings_of
from hanse.topology.settings import ManagerSettings

NAMES = st.sampled_from(sorted({one.name for one in (*settings_of(FederatorSettings), *settings_of(ManagerSettings))}))
VALUES = st.sampled_from(
    [
        '"1s"',
        "2",
        "true",
        '"mqtt://b:1883"',
        '["a/#"]',
        '"x"',
        "1.5",
        "-1",
        "nan",
        "1979-05-27",
        "{ a = 1 }",
        '"127.0.0.1:0"',
    ]
)
TABLES = st.lists(st.builds("{} = {}".format, NAMES, VALUES), max_size=4, unique_by=lambda line: line.split()[0])
FILES = st.builds(
    lambda section, lines: "\n".join([f"[{section}]", "id = 3" if section == "federator" else "", *lines]).encode(),
    st.sampled_from(["federator", "manager"]),
    TABLES,
)


def test_any_settings_file_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "hanse.toml"

    def take(data: bytes) -> None:
        file.write_bytes(data)
        first: LocalError | None = None
        for cls, section in ((FederatorSettings, "federator"), (ManagerSettings, "manager")):
            try:
                read_settings(cls, section=section, file=file)
            except LocalError as error:
                first = first or error
        if first is not None:
            raise first

    fuzz("settings", FILES, take, refusals=(LocalError,))
