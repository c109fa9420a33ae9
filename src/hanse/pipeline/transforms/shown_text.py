"""Bytes and text from outside as text that can be shown anywhere: a terminal, a table, a page.

Nothing here interprets: `<script>` stays `<script>` (the page escapes it), and every byte that is not printable is
shown as an escape, so that two different payloads never look the same by accident of a lossy decoder.
"""

# As much as a person reads in a table cell; the whole payload stays in bronze.
SHOWN_CHARS_MAX = 200


def show(data: bytes | str | None) -> str | None:
    """The beginning of `data` as printable text; what is cut off is counted."""
    if data is None:
        return None
    # Four bytes hold any character, so this cut never shortens what is shown.
    head = data[: SHOWN_CHARS_MAX * 4]
    text = head.decode("utf-8", "backslashreplace") if isinstance(head, bytes) else head
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:SHOWN_CHARS_MAX])
    hidden = len(text) - SHOWN_CHARS_MAX
    is_cut = hidden > 0 or len(head) < len(data)
    return f"{shown}… ({len(data)} in all)" if is_cut else shown


def is_text(data: bytes) -> bool:
    """Whether all of `data` is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
