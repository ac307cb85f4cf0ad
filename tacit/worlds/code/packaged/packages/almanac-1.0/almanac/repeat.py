"""Days that come again."""

from .days import add_months, day_number, days_in_month, from_day_number, weekday


def nth_weekday(year, month, day, n):
    """The n-th Monday (day 0) … Sunday (6) of a month; -1 is the last."""
    if n == 0:
        raise ValueError("count from 1, or from -1")
    if n > 0:
        first = weekday((year, month, 1))
        date = 1 + (day - first) % 7 + 7 * (n - 1)
    else:
        length = days_in_month(year, month)
        last = weekday((year, month, length))
        date = length - (last - day) % 7 + 7 * (n + 1)
    if not 1 <= date <= days_in_month(year, month):
        raise ValueError(f"month {month} has no such day")
    return year, month, date


def workdays(start, end, holidays=()):
    """Days from Monday to Friday between two dates, both included, without holidays."""
    count = 0
    for number in range(day_number(start), day_number(end) + 1):
        date = from_day_number(number)
        if weekday(date) < 5 and date not in holidays:
            count += 1
    return count


def add_workdays(date, days, holidays=()):
    """The date that many workdays later, or earlier where the number is negative."""
    step = 1 if days >= 0 else -1
    number, left = day_number(date), abs(days)
    while left > 0:
        number += step
        date = from_day_number(number)
        if weekday(date) < 5 and date not in holidays:
            left -= 1
    return from_day_number(number)


def every(start, count, days=0, months=0):
    """`count` dates, each some days or months after the start."""
    if (days > 0) == (months > 0):
        raise ValueError("repeat by days or by months")
    found = []
    for number in range(count):
        if months > 0:
            found.append(add_months(start, number * months))
        else:
            found.append(from_day_number(day_number(start) + number * days))
    return found


def matches(date, pattern):
    """Whether a date fits `YEAR-MONTH-DAY`, in which `*` is anything, `*/n` every n-th and `a,b` one of some."""
    for number, part in zip(date, pattern.split("-")):
        if part == "*":
            continue
        if part.startswith("*/"):
            if number % int(part[2:]) != 0:
                return False
        elif number not in [int(word) for word in part.split(",")]:
            return False
    return True


def easter(year):
    """Easter Sunday, by the method of Butcher."""
    golden = year % 19
    century, rest = divmod(year, 100)
    leaps, part = divmod(century, 4)
    moon = (19 * golden + century - leaps - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
    week = (32 + 2 * part + 2 * (rest // 4) - moon - rest % 4) % 7
    late = (golden + 11 * moon + 22 * week) // 451
    month, day = divmod(moon + week - 7 * late + 114, 31)
    return year, month, day + 1
