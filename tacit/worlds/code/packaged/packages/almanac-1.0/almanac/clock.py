"""Times of day as minutes after midnight."""

DAY = 24 * 60


def parse_time(text):
    """`9:30`, `21:05`, `9:30 pm`, `12 am`."""
    words = text.strip().lower().split()
    half = words[1] if len(words) > 1 else ""
    hour, _, minute = words[0].partition(":")
    hours, minutes = int(hour), int(minute or 0)
    if half:
        if not 1 <= hours <= 12 or half not in ("am", "pm"):
            raise ValueError(f"{text!r} is no time")
        hours = hours % 12 + (12 if half == "pm" else 0)
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text!r} is no time")
    return hours * 60 + minutes


def format_time(minutes, half_days=False):
    hours, minute = divmod(minutes % DAY, 60)
    if not half_days:
        return f"{hours:02d}:{minute:02d}"
    return f"{hours % 12 or 12}:{minute:02d} {'am' if hours < 12 else 'pm'}"


def add_minutes(time, minutes):
    """(time of day, days later)"""
    days, time = divmod(time + minutes, DAY)
    return time, days


def minutes_between(start, end):
    """From one time of day to the next occurrence of another."""
    return (end - start) % DAY


def parse_duration(text):
    """`1h 30m`, `2d`, `45m` in minutes."""
    units = {"d": DAY, "h": 60, "m": 1}
    total = 0
    for word in text.split():
        number, unit = word[:-1], word[-1]
        if unit not in units or not number.isdigit():
            raise ValueError(f"{word!r} is no duration")
        total += int(number) * units[unit]
    return total


def format_duration(minutes):
    """The largest units first; nothing is `0m`."""
    parts = []
    for unit, length in (("d", DAY), ("h", 60), ("m", 1)):
        count, minutes = divmod(minutes, length)
        if count > 0:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0m"
