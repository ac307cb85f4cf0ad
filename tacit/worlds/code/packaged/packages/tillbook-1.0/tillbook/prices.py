"""Prices of many things."""

from .money import percent


def price_with_tax(cents, rate, included=False):
    """(net, tax). With `included`, the price has the tax in it already."""
    if included:
        net = cents * 100 // (100 + rate)
        return net, cents - net
    return cents, percent(cents, rate)


def tiered(quantity, tiers):
    """The price of a quantity where `tiers` are (from which quantity on, price of each), in rising order."""
    if quantity < 0:
        raise ValueError("the quantity must not be negative")
    price = 0
    for start, each in tiers:
        if quantity >= start:
            price = each
    return quantity * price


def best_discount(cents, discounts):
    """The lowest price that one of the discounts gives: `10%` or an amount such as `250`. Never below zero."""
    best = cents
    for discount in discounts:
        if discount.endswith("%"):
            reduced = cents - percent(cents, int(discount[:-1]))
        else:
            reduced = cents - int(discount)
        best = min(best, max(reduced, 0))
    return best


class Basket:
    """What somebody buys."""

    def __init__(self, free_shipping=5000, shipping=490):
        self.lines = {}
        self.free_shipping = free_shipping
        self.shipping = shipping

    def add(self, name, cents, quantity=1):
        if quantity < 1:
            raise ValueError("add at least one")
        known, count = self.lines.get(name, (cents, 0))
        if known != cents:
            raise ValueError(f"{name} costs {known}, not {cents}")
        self.lines[name] = (cents, count + quantity)

    def remove(self, name, quantity=1):
        cents, count = self.lines[name]
        if quantity > count:
            raise ValueError(f"there are only {count} of {name}")
        if quantity == count:
            del self.lines[name]
        else:
            self.lines[name] = (cents, count - quantity)

    @property
    def items(self):
        return sum(count for _, count in self.lines.values())

    @property
    def subtotal(self):
        return sum(cents * count for cents, count in self.lines.values())

    def total(self, discounts=()):
        """With the best discount, and shipping where the price is below the limit."""
        if not self.lines:
            return 0
        price = best_discount(self.subtotal, discounts)
        if price < self.free_shipping:
            price += self.shipping
        return price

    def cheapest_free(self, every=3):
        """The reduction where of every `every` items the cheapest are free."""
        prices = []
        for cents, count in self.lines.values():
            prices.extend([cents] * count)
        prices.sort()
        free = len(prices) // every
        return sum(prices[:free])
