"""Amounts in cents, prices with discounts and taxes, and accounts."""

from .accounts import Account, Book, settle
from .money import change, format_cents, parse_cents, percent, share_out
from .prices import Basket, best_discount, price_with_tax, tiered

__all__ = [
    "Account", "Basket", "Book", "best_discount", "change", "format_cents", "parse_cents", "percent", "price_with_tax",
    "settle", "share_out", "tiered",
]
