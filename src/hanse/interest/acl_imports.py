"""Topics that clients of a Mosquitto may read by its `acl_file`, and that therefore need to enter the broker.

Mosquitto grants every SUBSCRIBE and compares messages with its access list only when it sends them. So a client without
any rights that subscribes to `#` gets nothing, but becomes interest in everything. `import_allow` limits what enters
the broker to what its clients may read.

Rules:

1. Reading rights of all users count, and of clients without a login: `topic` and `pattern` lines with `read`,
   `readwrite` or no access. Those of the federators do not: their logins begin with a prefix.
2. `deny` lines are left out, because another user may read the same topic. The result may therefore be too wide, and
   is never too narrow.
3. A level of a pattern with `%c` or `%u` becomes `+`.
4. Topics that begin with `$` are left out, because they do not cross.
"""

import json
from pathlib import Path

from hanse.errors import LocalError, RemoteError
from hanse.protocol.topics import check_filter, covers

# The federator takes as many filters in one setting.
FILTERS_MAX = 1_000
# Each is compared with each.
_COMPARED_MAX = 5_000
_FILE_BYTES_MAX = 16 * 1024 * 1024
_ACCESSES = {"read": True, "readwrite": True, "write": False, "deny": False}


def readable(text: str, user_prefix: str = "hanse-") -> list[str]:
    """Return the filters that clients may read, without those that others cover; sorted.

    Raises:
        LocalError: a line is not one of an access list; the message names it.
    """
    found: set[str] = set()
    is_federator = False
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if not word or word.startswith("#"):
            continue
        if word == "user" and rest:
            is_federator = rest.startswith(user_prefix)
        elif word in {"topic", "pattern"} and rest:
            wanted = _readable(word, rest)
            # A pattern holds for all users, wherever it stands.
            if wanted is not None and (word == "pattern" or not is_federator):
                found.add(_checked(wanted, number))
        else:
            raise LocalError(
                f"Line {number} of the access list begins with {word[:40]!r}; expected `user NAME`, "
                "`topic ACCESS TOPIC` or `pattern ACCESS TOPIC`."
            )
    if len(found) > _COMPARED_MAX:
        raise LocalError(f"The access list names {len(found)} filters; at most {_COMPARED_MAX} can be compared.")
    return sorted(one for one in found if not any(covers(other, one) for other in found if other != one))


def import_settings(path: Path) -> str:
    """Return the lines for the federator's configuration file.

    Raises:
        LocalError: the file cannot be read, is not an access list, or has too many filters.
    """
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise LocalError(f"{path} has more than {_FILE_BYTES_MAX} bytes; is it an access list?")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LocalError(f"{path} cannot be read ({error.strerror}); name the broker's acl_file.") from error
    except UnicodeDecodeError as error:
        raise LocalError(f"{path} is not UTF-8; is it an access list?") from error
    filters = readable(text)
    if len(filters) > FILTERS_MAX:
        raise LocalError(
            f"{path} lets clients read {len(filters)} separate filters, and a federator takes {FILTERS_MAX}; write "
            "wider filters into import_allow by hand."
        )
    head = f"# What clients of this broker may read, from {path.name}. Nothing else needs to enter it.\n[federator]\n"
    if not filters:
        return head + 'import_deny = ["#"]  # the access list lets no client read anything\n'
    return head + "import_allow = [\n" + "".join(f"    {_toml(one)},\n" for one in filters) + "]\n"


def _readable(word: str, rest: str) -> str | None:
    """Return the topic of a line that lets somebody read it; None for another one."""
    access, _, topic = rest.partition(" ")
    if access in _ACCESSES and topic:
        if not _ACCESSES[access]:
            return None
        rest = topic.strip()
    if rest.startswith("$"):
        return None
    if word == "pattern":
        rest = "/".join("+" if "%c" in level or "%u" in level else level for level in rest.split("/"))
    return rest


def _checked(wanted: str, number: int) -> str:
    try:
        check_filter(wanted)
    except RemoteError as error:
        raise LocalError(f"Line {number} of the access list has no valid filter: {error}") from error
    return wanted


def _toml(text: str) -> str:
    # A JSON string is also a TOML string.
    return json.dumps(text, ensure_ascii=False)
