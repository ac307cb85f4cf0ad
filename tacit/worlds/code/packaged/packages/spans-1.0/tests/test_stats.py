from spans import Span, busiest, coverage, gaps, overlaps


def test_coverage():
    window = Span(0, 10)
    assert coverage([Span(0, 5)], window) == 0.5
    assert coverage([Span(0, 5), Span(2, 6), Span(9, 30)], window) == 0.7
    assert coverage([], window) == 0


def test_gaps():
    assert gaps([Span(2, 4), Span(6, 7)], Span(0, 10)) == [Span(0, 2), Span(4, 6), Span(7, 10)]
    assert gaps([Span(0, 10)], Span(2, 5)) == []
    assert gaps([], Span(2, 5)) == [Span(2, 5)]


def test_overlaps():
    a, b, c, d = Span(0, 4), Span(3, 6), Span(4, 5), Span(7, 8)
    assert overlaps([d, c, b, a]) == [(a, b), (b, c)]
    assert overlaps([a, c]) == []


def test_busiest():
    assert busiest([Span(0, 4), Span(3, 6), Span(3, 5)]) == (3, Span(3, 4))
    assert busiest([Span(0, 2), Span(2, 4)]) == (1, Span(0, 2))
    assert busiest([Span(0, 9), Span(1, 3), Span(5, 7)]) == (2, Span(1, 3))


def test_busiest_of_nothing():
    assert busiest([]) == (0, None)
