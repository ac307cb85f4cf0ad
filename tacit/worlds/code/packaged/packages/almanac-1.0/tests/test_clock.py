import pytest
from almanac import add_minutes, format_duration, format_time, minutes_between, parse_duration, parse_time


@pytest.mark.parametrize("text, minutes", [
    ("9:30", 570), ("21:05", 1265), ("9:30 pm", 1290), ("12 am", 0), ("12:15 PM", 735), ("0:00", 0), ("7", 420),
])
def test_parse_time(text, minutes):
    assert parse_time(text) == minutes


@pytest.mark.parametrize("text", ["24:00", "9:60", "13 pm", "0 am", "9:30 xm"])
def test_parse_time_refuses(text):
    with pytest.raises(ValueError):
        parse_time(text)


def test_format_time():
    assert format_time(570) == "09:30"
    assert format_time(0) == "00:00"
    assert format_time(24 * 60 + 5) == "00:05"


def test_format_half_days():
    assert format_time(570, True) == "9:30 am"
    assert format_time(0, True) == "12:00 am"
    assert format_time(720, True) == "12:00 pm"
    assert format_time(1265, True) == "9:05 pm"


def test_add_minutes():
    assert add_minutes(570, 30) == (600, 0)
    assert add_minutes(1430, 20) == (10, 1)
    assert add_minutes(10, -20) == (1430, -1)


def test_minutes_between():
    assert minutes_between(540, 600) == 60
    assert minutes_between(1380, 60) == 120
    assert minutes_between(5, 5) == 0


def test_durations():
    assert parse_duration("1h 30m") == 90
    assert parse_duration("2d 1m") == 2881
    assert format_duration(90) == "1h 30m"
    assert format_duration(2881) == "2d 1m"
    assert format_duration(0) == "0m"
    assert format_duration(60) == "1h"


@pytest.mark.parametrize("text", ["5x", "h", "1.5h"])
def test_durations_refuse(text):
    with pytest.raises(ValueError):
        parse_duration(text)
