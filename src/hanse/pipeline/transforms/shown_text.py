"""Conversion of external bytes and text to text that is safe to show in a terminal, a table or a page.

Nothing is interpreted: `<script>` stays `<script>` (the page escapes it). Every unprintable byte becomes an escape, so
two different payloads never look the same because of a lossy decoder.
"""

# About as much as a person reads in a table cell; the whole payload stays in bronze.
SHOWN_CHARS_MAX = 200


def show(data: bytes | str | None) -> str | None:
    """Return the beginning of `data` as printable text, with the total length if it was cut."""
    if data is None:
        return None
    # A character has at most four bytes, so this cut never shortens the shown text.
    head = data[: SHOWN_CHARS_MAX * 4]
    text = head.decode("utf-8", "backslashreplace") if isinstance(head, bytes) else head
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:SHOWN_CHARS_MAX])
    hidden = len(text) - SHOWN_CHARS_MAX
    is_cut = hidden > 0 or len(head) < len(data)
    return f"{shown}… ({len(data)} in all)" if is_cut else shown


def is_text(data: bytes) -> bool:
    """Return whether all of `data` is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
