"""Small functions for text: wrapping, tables, distances, numerals."""

from .layout import align, columns, indent, wrap
from .numerals import from_roman, ordinal, spell, to_roman
from .words import caesar, common_prefix, distance, is_palindrome, parse_fields, slug, title_case, top_words

__all__ = [
    "align", "caesar", "columns", "common_prefix", "distance", "from_roman", "indent", "is_palindrome", "ordinal",
    "parse_fields", "slug", "spell", "title_case", "to_roman", "top_words", "wrap",
]
