import pytest
from gridways import Grid, parse_moves

TEXT = """
ab#
cde
"""


@pytest.fixture
def grid():
    return Grid(TEXT)


def test_size_and_text(grid):
    assert (grid.height, grid.width) == (2, 3)
    assert str(grid) == "ab#\ncde"


def test_rows_must_be_equal():
    with pytest.raises(ValueError):
        Grid("ab\nc")


def test_items(grid):
    assert grid[0, 1] == "b"
    assert grid[1, 2] == "e"
    grid[1, 0] = "x"
    assert str(grid) == "ab#\nxde"


def test_contains(grid):
    assert (0, 0) in grid
    assert (1, 2) in grid
    assert (2, 0) not in grid
    assert (0, 3) not in grid
    assert (-1, 0) not in grid
    assert (0, -1) not in grid


def test_places(grid):
    assert grid.places() == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_find_and_count(grid):
    assert grid.find("d") == (1, 1)
    assert grid.find("z") is None
    assert Grid("aba\naaa").count("a") == 5


def test_neighbors(grid):
    assert sorted(grid.neighbors((0, 0))) == [(0, 1), (1, 0)]
    assert sorted(grid.neighbors((1, 1))) == [(0, 1), (1, 0), (1, 2)]
    assert sorted(grid.neighbors((0, 0), diagonal=True)) == [(0, 1), (1, 0), (1, 1)]


def test_border():
    grid = Grid("abc\ndef\nghi")
    assert [place for place in grid.places() if not grid.is_border(place)] == [(1, 1)]


def test_turn_and_flip(grid):
    assert str(grid.turn()) == "ca\ndb\ne#"
    assert str(grid.flip()) == "#ba\nedc"
    assert str(grid.turn().turn().turn().turn()) == str(grid)


def test_window():
    grid = Grid("abcd\nefgh\nijkl")
    assert str(grid.window((1, 1), 1)) == "abc\nefg\nijk"
    assert str(grid.window((0, 0), 1)) == "ab\nef"
    assert str(grid.window((2, 3), 1)) == "gh\nkl"
    assert str(grid.window((1, 2), 0)) == "g"


def test_walk(grid):
    assert grid.walk((0, 0), "RD") == (1, 1)
    assert grid.walk((0, 0), "RRDR") == (1, 2)
    assert grid.walk((0, 0), "UL") == (0, 0)
    assert grid.walk((1, 2), "DRU") == (1, 2)


def test_moves():
    assert parse_moves("R3 D2 l") == "RRRDDL"
    assert parse_moves("") == ""
    with pytest.raises(ValueError):
        parse_moves("X2")
