"""Calendar arithmetic with plain numbers: days, weeks, times of day, repetition."""

from .clock import add_minutes, format_duration, format_time, minutes_between, parse_duration, parse_time
from .days import add_months, day_number, day_of_year, days_in_month, from_day_number, is_leap, weekday
from .repeat import add_workdays, easter, every, matches, nth_weekday, workdays

__all__ = [
    "add_minutes", "add_months", "add_workdays", "day_number", "day_of_year", "days_in_month", "easter", "every",
    "format_duration", "format_time", "from_day_number", "is_leap", "matches", "minutes_between", "nth_weekday",
    "parse_duration", "parse_time", "weekday", "workdays",
]
