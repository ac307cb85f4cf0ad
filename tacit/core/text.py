"""Text that somebody else wrote."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """False for half a surrogate pair: JSON can say it, and no file, tokenizer or bank can take it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
