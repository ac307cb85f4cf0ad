import pytest
from wordsmith import from_roman, ordinal, spell, to_roman


@pytest.mark.parametrize("number, text", [(1, "I"), (4, "IV"), (9, "IX"), (14, "XIV"), (1994, "MCMXCIV"), (3999, "MMMCMXCIX")])
def test_roman(number, text):
    assert to_roman(number) == text
    assert from_roman(text) == number


def test_roman_limits():
    for number in (0, 4000):
        with pytest.raises(ValueError):
            to_roman(number)


def test_roman_refuses_odd_spelling():
    with pytest.raises(ValueError):
        from_roman("IIII")
    with pytest.raises(ValueError):
        from_roman("IC")


def test_ordinal():
    assert [ordinal(n) for n in (1, 2, 3, 4, 10)] == ["1st", "2nd", "3rd", "4th", "10th"]
    assert [ordinal(n) for n in (11, 12, 13, 20)] == ["11th", "12th", "13th", "20th"]
    assert [ordinal(n) for n in (21, 22, 101, 111, 113)] == ["21st", "22nd", "101st", "111th", "113th"]


def test_spell_small():
    assert spell(0) == "zero"
    assert spell(19) == "nineteen"
    assert spell(20) == "twenty"
    assert spell(42) == "forty-two"
    assert spell(99) == "ninety-nine"


def test_spell_hundreds():
    assert spell(100) == "one hundred"
    assert spell(115) == "one hundred and fifteen"
    assert spell(999) == "nine hundred and ninety-nine"


def test_spell_thousands():
    assert spell(1000) == "one thousand"
    assert spell(2005) == "two thousand and five"
    assert spell(1100) == "one thousand one hundred"
    assert spell(12345) == "twelve thousand three hundred and forty-five"


def test_spell_negative_and_large():
    assert spell(-7) == "minus seven"
    assert spell(999999).startswith("nine hundred and ninety-nine thousand")
    with pytest.raises(ValueError):
        spell(1000000)
