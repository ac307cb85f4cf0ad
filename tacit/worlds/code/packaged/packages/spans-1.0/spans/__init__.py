"""Half-open intervals of numbers, and sets of them."""

from .core import Span, SpanSet, parse_span
from .stats import busiest, coverage, gaps, overlaps

__all__ = ["Span", "SpanSet", "busiest", "coverage", "gaps", "overlaps", "parse_span"]
