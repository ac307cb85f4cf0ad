"""Amounts are whole cents."""

COINS = (200, 100, 50, 20, 10, 5, 2, 1)


def parse_cents(text):
    """`12.34`, `-5`, `1,200.5` and `.5` as cents."""
    text = text.strip().replace(",", "")
    sign = -1 if text.startswith("-") else 1
    whole, _, part = text.lstrip("+-").partition(".")
    if len(part) > 2 or not (whole + part).isdigit():
        raise ValueError(f"{text!r} is no amount")
    return sign * (int(whole or 0) * 100 + int((part + "00")[:2]))


def format_cents(cents):
    """1234567 -> `12,345.67`"""
    sign = "-" if cents < 0 else ""
    whole, part = divmod(abs(cents), 100)
    return f"{sign}{whole:,}.{part:02d}"


def percent(cents, rate):
    """A percentage, rounded half away from zero."""
    scaled = abs(cents * rate)
    rounded = int(scaled // 100)
    if scaled % 100 >= 50:
        rounded += 1
    return rounded if cents * rate >= 0 else -rounded


def share_out(cents, shares):
    """Divide in proportion to the shares. Left-over cents go to the first ones."""
    total = sum(shares)
    if total <= 0 or min(shares) < 0:
        raise ValueError("shares must be positive")
    parts = [cents * share // total for share in shares]
    left = cents - sum(parts)
    place = 0
    while left > 0:
        if shares[place] > 0:
            parts[place] += 1
            left -= 1
        place = (place + 1) % len(parts)
    return parts


def change(cents, coins=COINS):
    """The coins of an amount, largest first."""
    if cents < 0:
        raise ValueError("no change for a negative amount")
    found = []
    for coin in coins:
        count, cents = divmod(cents, coin)
        found.extend([coin] * count)
    return found
