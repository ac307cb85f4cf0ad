"""Questions about many spans."""

from .core import Span, SpanSet


def coverage(spans, window):
    """The share of the window that the spans cover, from 0 to 1."""
    inside = SpanSet([window]).intersect(SpanSet(spans))
    return inside.total / window.length


def gaps(spans, window):
    """The parts of the window that no span covers."""
    free = SpanSet([window])
    for span in spans:
        free.remove(span)
    return list(free)


def overlaps(spans):
    """Pairs of spans that overlap, in order."""
    ordered = sorted(spans)
    found = []
    for i, first in enumerate(ordered):
        for second in ordered[i + 1 :]:
            if second.start >= first.end:
                break
            found.append((first, second))
    return found


def busiest(spans):
    """(the most spans at one point, the first span of points where that is so)."""
    events = []
    for span in spans:
        events.append((span.start, 1))
        events.append((span.end, -1))
    events.sort()
    best, depth, begin = 0, 0, None
    found = None
    for point, change in events:
        if begin is not None and change < 0 and depth == best:
            found = Span(begin, point)
            begin = None
        depth += change
        if depth > best:
            best, begin, found = depth, point, None
    return best, found
