import pytest
from almanac import add_months, day_number, day_of_year, days_in_month, from_day_number, is_leap, weekday


def test_leap_years():
    assert [year for year in (1900, 1996, 1999, 2000, 2004, 2100) if is_leap(year)] == [1996, 2000, 2004]


def test_days_in_month():
    assert days_in_month(2023, 2) == 28
    assert days_in_month(2024, 2) == 29
    assert days_in_month(2024, 12) == 31
    assert days_in_month(2024, 4) == 30
    for month in (0, 13):
        with pytest.raises(ValueError):
            days_in_month(2024, month)


def test_day_of_year():
    assert day_of_year((2023, 1, 1)) == 1
    assert day_of_year((2023, 3, 1)) == 60
    assert day_of_year((2024, 3, 1)) == 61
    assert day_of_year((2024, 12, 31)) == 366
    with pytest.raises(ValueError):
        day_of_year((2023, 2, 29))
    with pytest.raises(ValueError):
        day_of_year((2023, 2, 0))


def test_day_number():
    assert day_number((1, 1, 1)) == 1
    assert day_number((2, 1, 1)) == 366
    assert day_number((2000, 1, 1)) == 730120
    assert day_number((2024, 3, 1)) - day_number((2024, 2, 28)) == 2
    assert day_number((2001, 1, 1)) - day_number((2000, 1, 1)) == 366
    assert day_number((1901, 1, 1)) - day_number((1900, 1, 1)) == 365


@pytest.mark.parametrize("date", [(1, 1, 1), (1999, 12, 31), (2000, 2, 29), (2023, 7, 4), (2024, 12, 31), (2400, 1, 31)])
def test_round_trip(date):
    assert from_day_number(day_number(date)) == date


def test_day_numbers_begin_at_one():
    with pytest.raises(ValueError):
        from_day_number(0)


def test_weekday():
    assert weekday((2024, 1, 1)) == 0
    assert weekday((2023, 7, 4)) == 1
    assert weekday((2000, 1, 1)) == 5
    assert weekday((2024, 2, 29)) == 3


def test_add_months():
    assert add_months((2024, 1, 31), 1) == (2024, 2, 29)
    assert add_months((2023, 11, 15), 3) == (2024, 2, 15)
    assert add_months((2024, 3, 31), -1) == (2024, 2, 29)
    assert add_months((2024, 12, 1), 1) == (2025, 1, 1)
    assert add_months((2024, 1, 1), -1) == (2023, 12, 1)
