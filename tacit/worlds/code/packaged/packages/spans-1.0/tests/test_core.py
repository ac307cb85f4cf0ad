import pytest
from spans import Span, SpanSet, parse_span


def test_a_span_needs_a_length():
    with pytest.raises(ValueError):
        Span(3, 3)
    with pytest.raises(ValueError):
        Span(4, 3)


def test_contains_the_start_but_not_the_end():
    span = Span(2, 5)
    assert 2 in span
    assert 4 in span
    assert 5 not in span
    assert 1 not in span


def test_length_and_middle():
    assert Span(2, 6).length == 4
    assert Span(2, 6).middle == 4
    assert Span(1, 2).middle == 1.5


def test_equality_and_hash():
    assert Span(1, 2) == Span(1, 2)
    assert Span(1, 2) != Span(1, 3)
    assert Span(0, 2) != Span(1, 2)
    assert Span(1, 2) != (1, 2)
    assert len({Span(1, 2), Span(1, 2), Span(2, 3)}) == 2


def test_order():
    assert sorted([Span(3, 4), Span(1, 5), Span(1, 2)]) == [Span(1, 2), Span(1, 5), Span(3, 4)]


def test_touching():
    assert Span(1, 3).touches(Span(3, 5))
    assert Span(3, 5).touches(Span(1, 3))
    assert Span(1, 4).touches(Span(2, 3))
    assert not Span(1, 2).touches(Span(3, 4))
    assert not Span(3, 4).touches(Span(1, 2))


def test_overlapping():
    assert Span(1, 4).overlaps(Span(3, 5))
    assert not Span(1, 3).overlaps(Span(3, 5))
    assert not Span(3, 5).overlaps(Span(1, 3))


def test_intersect():
    assert Span(1, 5).intersect(Span(3, 8)) == Span(3, 5)
    assert Span(1, 9).intersect(Span(3, 5)) == Span(3, 5)
    assert Span(1, 2).intersect(Span(2, 3)) is None


def test_join():
    assert Span(1, 3).join(Span(3, 5)) == Span(1, 5)
    assert Span(1, 9).join(Span(3, 5)) == Span(1, 9)
    with pytest.raises(ValueError):
        Span(1, 2).join(Span(4, 5))


def test_shift():
    assert Span(1, 3).shift(4) == Span(5, 7)
    assert Span(1, 3).shift(-1) == Span(0, 2)


def test_subtract():
    assert Span(1, 9).subtract(Span(3, 5)) == [Span(1, 3), Span(5, 9)]
    assert Span(1, 5).subtract(Span(3, 9)) == [Span(1, 3)]
    assert Span(3, 9).subtract(Span(1, 5)) == [Span(5, 9)]
    assert Span(3, 4).subtract(Span(1, 5)) == []
    assert Span(1, 2).subtract(Span(5, 6)) == [Span(1, 2)]


def test_split():
    assert Span(0, 6).split(3) == [Span(0, 2), Span(2, 4), Span(4, 6)]
    assert Span(0, 1).split(1) == [Span(0, 1)]
    with pytest.raises(ValueError):
        Span(0, 1).split(0)


@pytest.mark.parametrize("text, span", [("3-7", Span(3, 7)), ("3..7", Span(3, 7)), (" 5 ", Span(5, 6))])
def test_parse(text, span):
    assert parse_span(text) == span


def test_adding_merges_neighbors():
    spans = SpanSet([Span(1, 2), Span(5, 6), Span(2, 3)])
    assert list(spans) == [Span(1, 3), Span(5, 6)]
    spans.add(Span(3, 5))
    assert list(spans) == [Span(1, 6)]
    assert len(spans) == 1


def test_sets_are_equal_however_they_were_made():
    assert SpanSet([Span(1, 3), Span(3, 6)]) == SpanSet([Span(1, 6)])
    assert SpanSet([Span(1, 3)]) != SpanSet([Span(1, 4)])


def test_set_contains():
    spans = SpanSet([Span(1, 3), Span(5, 8), Span(10, 11)])
    assert [point for point in range(12) if point in spans] == [1, 2, 5, 6, 7, 10]
    assert 0 not in SpanSet()


def test_total():
    assert SpanSet([Span(1, 3), Span(5, 8)]).total == 5
    assert SpanSet().total == 0


def test_remove():
    spans = SpanSet([Span(0, 10)])
    spans.remove(Span(2, 4))
    spans.remove(Span(9, 20))
    assert list(spans) == [Span(0, 2), Span(4, 9)]


def test_intersect_sets():
    first = SpanSet([Span(0, 4), Span(6, 10)])
    assert list(first.intersect(SpanSet([Span(3, 7)]))) == [Span(3, 4), Span(6, 7)]
    assert len(first.intersect(SpanSet([Span(4, 6)]))) == 0


def test_first_fit():
    spans = SpanSet([Span(0, 3), Span(5, 6), Span(10, 12)])
    assert spans.first_fit(2) == 3
    assert spans.first_fit(3) == 6
    assert spans.first_fit(5) == 12
    assert spans.first_fit(1, start=4) == 4
    assert SpanSet().first_fit(7, start=2) == 2
