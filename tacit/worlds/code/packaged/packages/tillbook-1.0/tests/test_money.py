import pytest
from tillbook import change, format_cents, parse_cents, percent, share_out


@pytest.mark.parametrize("text, cents", [
    ("12.34", 1234), ("-5", -500), ("1,200.5", 120050), (".5", 50), ("0", 0), ("+3.07", 307), (" 7 ", 700),
])
def test_parse(text, cents):
    assert parse_cents(text) == cents


@pytest.mark.parametrize("text", ["", "abc", "1.234", "1.2.3", "-"])
def test_parse_refuses(text):
    with pytest.raises(ValueError):
        parse_cents(text)


def test_format():
    assert format_cents(1234567) == "12,345.67"
    assert format_cents(5) == "0.05"
    assert format_cents(-1050) == "-10.50"
    assert format_cents(0) == "0.00"


def test_percent_rounds_half_up():
    assert percent(1000, 19) == 190
    assert percent(50, 1) == 1
    assert percent(49, 1) == 0
    assert percent(-50, 1) == -1
    assert percent(333, 10) == 33
    assert percent(335, 10) == 34


def test_share_out():
    assert share_out(100, [1, 1, 1]) == [34, 33, 33]
    assert share_out(100, [3, 1]) == [75, 25]
    assert share_out(101, [0, 1, 1]) == [0, 51, 50]
    assert share_out(0, [1, 2]) == [0, 0]
    assert sum(share_out(9999, [7, 11, 13])) == 9999


def test_share_out_refuses():
    with pytest.raises(ValueError):
        share_out(10, [0, 0])
    with pytest.raises(ValueError):
        share_out(10, [2, -1])


def test_change():
    assert change(388) == [200, 100, 50, 20, 10, 5, 2, 1]
    assert change(40) == [20, 20]
    assert change(0) == []
    with pytest.raises(ValueError):
        change(-1)
