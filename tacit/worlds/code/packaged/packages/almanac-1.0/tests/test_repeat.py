import pytest
from almanac import add_workdays, easter, every, matches, nth_weekday, workdays


def test_nth_weekday():
    assert nth_weekday(2024, 1, 0, 1) == (2024, 1, 1)
    assert nth_weekday(2024, 11, 3, 4) == (2024, 11, 28)
    assert nth_weekday(2024, 5, 0, -1) == (2024, 5, 27)
    assert nth_weekday(2024, 3, 6, -1) == (2024, 3, 31)
    assert nth_weekday(2024, 3, 6, -2) == (2024, 3, 24)


def test_nth_weekday_refuses():
    with pytest.raises(ValueError):
        nth_weekday(2024, 2, 0, 5)
    with pytest.raises(ValueError):
        nth_weekday(2024, 2, 0, 0)


def test_workdays():
    assert workdays((2024, 1, 1), (2024, 1, 7)) == 5
    assert workdays((2024, 1, 6), (2024, 1, 7)) == 0
    assert workdays((2024, 1, 1), (2024, 1, 1)) == 1
    assert workdays((2024, 1, 1), (2024, 1, 5), holidays=[(2024, 1, 1)]) == 4


def test_add_workdays():
    assert add_workdays((2024, 1, 5), 1) == (2024, 1, 8)
    assert add_workdays((2024, 1, 8), -1) == (2024, 1, 5)
    assert add_workdays((2024, 1, 1), 10) == (2024, 1, 15)
    assert add_workdays((2024, 1, 1), 0) == (2024, 1, 1)
    assert add_workdays((2024, 1, 5), 1, holidays=[(2024, 1, 8)]) == (2024, 1, 9)


def test_every():
    assert every((2024, 1, 31), 3, months=1) == [(2024, 1, 31), (2024, 2, 29), (2024, 3, 31)]
    assert every((2024, 2, 27), 3, days=2) == [(2024, 2, 27), (2024, 2, 29), (2024, 3, 2)]


def test_every_refuses():
    with pytest.raises(ValueError):
        every((2024, 1, 1), 3)
    with pytest.raises(ValueError):
        every((2024, 1, 1), 3, days=1, months=1)


def test_matches():
    assert matches((2024, 2, 29), "*-2-29")
    assert matches((2024, 6, 15), "*-*/3-15")
    assert matches((2024, 6, 15), "2024-*-1,15")
    assert not matches((2024, 6, 15), "2023-*-*")
    assert not matches((2024, 7, 15), "*-*/3-*")
    assert not matches((2024, 6, 14), "*-*-1,15")


@pytest.mark.parametrize("date", [(1999, 4, 4), (2000, 4, 23), (2008, 3, 23), (2019, 4, 21), (2024, 3, 31), (2038, 4, 25)])
def test_easter(date):
    assert easter(date[0]) == date
