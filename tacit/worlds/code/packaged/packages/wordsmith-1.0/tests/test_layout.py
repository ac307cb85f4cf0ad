import pytest
from wordsmith import align, columns, indent, wrap


def test_wrap_fills_lines():
    assert wrap("the quick brown fox", 9) == ["the quick", "brown fox"]
    assert wrap("the quick brown fox", 10) == ["the quick", "brown fox"]
    assert wrap("a b c", 1) == ["a", "b", "c"]


def test_wrap_cuts_long_words():
    assert wrap("an extraordinary word", 5) == ["an", "extra", "ordin", "ary", "word"]
    assert wrap("abcdef", 3) == ["abc", "def"]


def test_wrap_of_nothing():
    assert wrap("  ", 5) == []


def test_wrap_refuses_no_width():
    with pytest.raises(ValueError):
        wrap("word", 0)


def test_indent():
    assert indent("a\nb") == "  a\n  b"
    assert indent("a\n\nb", 1) == " a\n\n b"


def test_indent_first_line():
    assert indent("a\nb", 4, first=0) == "a\n    b"
    assert indent("a\nb", 1, first=3) == "   a\n b"


def test_align():
    assert align("ab", 5) == "ab   "
    assert align("ab", 5, "right") == "   ab"
    assert align("ab", 5, "center") == " ab  "
    assert align("abc", 3) == "abc"
    assert align("abcd", 3, "right") == "abcd"


def test_align_refuses_other_words():
    with pytest.raises(ValueError):
        align("ab", 5, "middle")


def test_columns():
    assert columns([["name", "n"], ["ash", 12], ["birch", 3]]) == "name   n\nash    12\nbirch   3"
    assert columns([["a", "b"], ["c"]], gap=1) == "a b\nc"
    assert columns([]) == ""
