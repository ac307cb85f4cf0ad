"""Dates are (year, month, day) of the Gregorian calendar."""

LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    if month < 1 or month > 12:
        raise ValueError(f"there is no month {month}")
    return LENGTHS[month - 1] + (1 if month == 2 and is_leap(year) else 0)


def day_of_year(date):
    year, month, day = date
    if not 1 <= day <= days_in_month(year, month):
        raise ValueError(f"there is no day {day} in month {month} of {year}")
    return sum(days_in_month(year, earlier) for earlier in range(1, month)) + day


def day_number(date):
    """Days since the first of January of the year 1, which is day 1."""
    before = date[0] - 1
    return before * 365 + before // 4 - before // 100 + before // 400 + day_of_year(date)


def from_day_number(number):
    if number < 1:
        raise ValueError("day numbers begin at 1")
    year = number // 366 + 1
    while day_number((year + 1, 1, 1)) <= number:
        year += 1
    left = number - day_number((year, 1, 1))
    month = 1
    while left >= days_in_month(year, month):
        left -= days_in_month(year, month)
        month += 1
    return year, month, left + 1


def weekday(date):
    """0 is Monday, 6 is Sunday."""
    return (day_number(date) - 1) % 7


def add_months(date, months):
    """The same day of another month, or its last day where it is shorter."""
    year, month, day = date
    place = year * 12 + month - 1 + months
    year, month = place // 12, place % 12 + 1
    return year, month, min(day, days_in_month(year, month))
