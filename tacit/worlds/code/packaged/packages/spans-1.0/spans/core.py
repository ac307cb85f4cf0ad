"""A span is [start, end): the start belongs to it, the end does not."""


class Span:
    """One interval. Empty spans are not allowed."""

    __slots__ = ("end", "start")

    def __init__(self, start, end):
        if start >= end:
            raise ValueError(f"a span needs start < end, not {start} and {end}")
        self.start = start
        self.end = end

    def __repr__(self):
        return f"Span({self.start}, {self.end})"

    def __eq__(self, other):
        return isinstance(other, Span) and self.start == other.start and self.end == other.end

    def __hash__(self):
        return hash((self.start, self.end))

    def __lt__(self, other):
        return (self.start, self.end) < (other.start, other.end)

    def __contains__(self, point):
        return self.start <= point < self.end

    @property
    def length(self):
        return self.end - self.start

    @property
    def middle(self):
        return (self.start + self.end) / 2

    def touches(self, other):
        """True where the two overlap or one begins where the other ends."""
        return self.start <= other.end and other.start <= self.end

    def overlaps(self, other):
        return self.start < other.end and other.start < self.end

    def intersect(self, other):
        """The common part, or None."""
        if not self.overlaps(other):
            return None
        return Span(max(self.start, other.start), min(self.end, other.end))

    def join(self, other):
        """The union of two spans that touch."""
        if not self.touches(other):
            raise ValueError(f"{self} and {other} do not touch")
        return Span(min(self.start, other.start), max(self.end, other.end))

    def shift(self, amount):
        return Span(self.start + amount, self.end + amount)

    def subtract(self, other):
        """What is left of this span without the other: zero, one or two spans."""
        if not self.overlaps(other):
            return [self]
        left = []
        if self.start < other.start:
            left.append(Span(self.start, other.start))
        if other.end < self.end:
            left.append(Span(other.end, self.end))
        return left

    def split(self, parts):
        """Equal parts, in order."""
        if parts < 1:
            raise ValueError("split into at least one part")
        width = self.length / parts
        return [Span(self.start + width * i, self.start + width * (i + 1)) for i in range(parts)]


def parse_span(text):
    """`3-7` or `3..7` is Span(3, 7); a single number `5` is Span(5, 6)."""
    text = text.strip()
    separator = ".." if ".." in text else "-"
    first, found, last = text.partition(separator)
    if not found:
        return Span(int(first), int(first) + 1)
    return Span(int(first), int(last))


class SpanSet:
    """Spans that neither overlap nor touch, in order. Adding a span merges it with its neighbors."""

    def __init__(self, spans=()):
        self._spans = []
        for span in spans:
            self.add(span)

    def __iter__(self):
        return iter(self._spans)

    def __len__(self):
        return len(self._spans)

    def __eq__(self, other):
        return isinstance(other, SpanSet) and list(self) == list(other)

    def __contains__(self, point):
        """Binary search for the last span that begins at or before the point."""
        low, high = 0, len(self._spans)
        while low < high:
            middle = (low + high) // 2
            if self._spans[middle].start <= point:
                low = middle + 1
            else:
                high = middle
        return low > 0 and point in self._spans[low - 1]

    @property
    def total(self):
        return sum(span.length for span in self._spans)

    def add(self, span):
        kept = []
        for own in self._spans:
            if own.touches(span):
                span = span.join(own)
            else:
                kept.append(own)
        kept.append(span)
        self._spans = sorted(kept)

    def remove(self, span):
        left = []
        for own in self._spans:
            left.extend(own.subtract(span))
        self._spans = left

    def intersect(self, other):
        found = SpanSet()
        for own in self._spans:
            for span in other:
                common = own.intersect(span)
                if common is not None:
                    found.add(common)
        return found

    def first_fit(self, length, start=0):
        """The smallest point from `start` on where a span of this length fits between the spans of the set."""
        point = start
        for span in self._spans:
            if span.end <= point:
                continue
            if span.start - point >= length:
                return point
            point = span.end
        return point
