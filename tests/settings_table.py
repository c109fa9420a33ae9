"""Check of the generated table of a service's settings in its page.

When a setting changes, HANSE_WRITE_DOCS=1 with the test of the page writes the table again.
"""

import os
import re
from pathlib import Path

from hanse.settings import Setting, format_duration, settings_of

_PLACE = re.compile(r"(<!-- settings: [^\n]*-->\n).*?(<!-- end of settings -->)", re.DOTALL)


def check_table(page: Path, settings: type) -> None:
    """Fail unless the page has the table of these settings."""
    text = page.read_text()
    wanted = _PLACE.sub(lambda match: match[1] + "\n" + _table(settings) + "\n" + match[2], text)
    if os.environ.get("HANSE_WRITE_DOCS"):
        page.write_text(wanted)
        text = wanted
    assert _PLACE.search(text)
    assert text == wanted


def _table(settings: type) -> str:
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    rows += [f"| `{one.name}`{_aliases(one)} | {_default(one)} | {_meaning(one)} |" for one in settings_of(settings)]
    return "\n".join(rows) + "\n"


def _aliases(one: Setting) -> str:
    return "".join(f" (`{alias}`)" for alias in one.spec.aliases)


def _default(one: Setting) -> str:
    if one.default is None or one.default == ():
        return ""
    if one.spec.is_duration:
        return f"`{format_duration(one.default)}`"
    value = one.default
    shown = ", ".join(value) if isinstance(value, tuple) else str(value).lower() if one.kind is bool else str(value)
    return f"`{shown}`"


def _meaning(one: Setting) -> str:
    choices = f" One of {', '.join(f'`{choice}`' for choice in one.spec.choices)}." if one.spec.choices else ""
    return one.spec.help.replace("|", "\\|") + choices
