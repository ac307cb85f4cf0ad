import pytest
from wordsmith import caesar, common_prefix, distance, is_palindrome, parse_fields, slug, title_case, top_words


def test_slug():
    assert slug("Hello,  World!") == "hello-world"
    assert slug("--Already-- a slug--") == "already-a-slug"
    assert slug("") == ""


def test_slug_is_cut_at_a_dash():
    assert slug("one two three", 8) == "one-two"
    assert slug("one two three", 7) == "one-two"
    assert slug("one two three", 6) == "one"
    assert slug("unbreakable", 5) == "unbre"


def test_title_case():
    assert title_case("the lord of the rings") == "The Lord of the Rings"
    assert title_case("what are we waiting FOR") == "What Are We Waiting For"
    assert title_case("a") == "A"


@pytest.mark.parametrize("first, second, apart", [
    ("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("same", "same", 0), ("ab", "ba", 2),
])
def test_distance(first, second, apart):
    assert distance(first, second) == apart
    assert distance(second, first) == apart


def test_palindromes():
    assert is_palindrome("A man, a plan, a canal: Panama")
    assert is_palindrome("abba")
    assert is_palindrome("")
    assert not is_palindrome("abca")
    assert not is_palindrome("ab")


def test_common_prefix():
    assert common_prefix(["flower", "flow", "flight"]) == "fl"
    assert common_prefix(["same", "same"]) == "same"
    assert common_prefix(["a", "b"]) == ""
    assert common_prefix([]) == ""


def test_caesar():
    assert caesar("abc xyz", 3) == "def abc"
    assert caesar("Zebra!", 1) == "Afcsb!"
    assert caesar(caesar("Round trip", 7), -7) == "Round trip"


def test_top_words():
    text = "The cat and the dog. The end, and then..."
    assert top_words(text, 2) == [("the", 3), ("and", 2)]
    assert top_words(text, 4) == [("the", 3), ("and", 2), ("cat", 1), ("dog", 1)]
    assert top_words(". .", 3) == []


def test_fields():
    assert parse_fields("a,b,c") == ["a", "b", "c"]
    assert parse_fields("a,,") == ["a", "", ""]
    assert parse_fields("a;b", ";") == ["a", "b"]


def test_quoted_fields():
    assert parse_fields('"a,b",c') == ["a,b", "c"]
    assert parse_fields('"say ""hi""",x') == ['say "hi"', "x"]
    with pytest.raises(ValueError):
        parse_fields('"open')
