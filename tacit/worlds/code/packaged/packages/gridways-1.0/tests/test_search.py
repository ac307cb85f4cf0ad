from gridways import Grid, cheapest, components, flood, reachable, shortest_path, spread

MAZE = Grid("..#.\n.#..\n....")


def test_reachable():
    steps = reachable(MAZE, (0, 0))
    assert steps[0, 1] == 1
    assert steps[2, 0] == 2
    assert steps[0, 3] == 7
    assert (0, 2) not in steps
    assert len(steps) == 10


def test_shortest_path():
    path = shortest_path(MAZE, (0, 0), (2, 2))
    assert path == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert shortest_path(MAZE, (0, 0), (0, 0)) == [(0, 0)]


def test_no_path():
    assert shortest_path(Grid(".#."), (0, 0), (0, 2)) is None


def test_cheapest():
    grid = Grid("119\n911\n991")
    assert cheapest(grid, (0, 0), (2, 2)) == 4
    assert cheapest(grid, (2, 2), (0, 0)) == 4
    assert cheapest(grid, (1, 1), (1, 1)) == 0


def test_cheapest_goes_around():
    assert cheapest(Grid("191\n191\n111"), (0, 0), (0, 2)) == 6
    assert cheapest(Grid("1#1"), (0, 0), (0, 2)) is None


def test_components():
    grid = Grid("xx.x\n...x\nx..x")
    assert components(grid, "x") == [[(0, 3), (1, 3), (2, 3)], [(0, 0), (0, 1)], [(2, 0)]]
    assert components(grid, "z") == []


def test_diagonal_components():
    grid = Grid("x.x\n.x.\n..x")
    assert len(components(grid, "x")) == 4
    assert len(components(grid, "x", diagonal=True)) == 1


def test_flood():
    grid = Grid("aab\naba\nbaa")
    assert flood(grid, (0, 0), "c") == 3
    assert str(grid) == "ccb\ncba\nbaa"
    assert flood(grid, (0, 0), "c") == 0


def test_spread():
    assert spread(Grid("*..\n...")) == 3
    assert spread(Grid("*.*")) == 1
    assert spread(Grid("*")) == 0


def test_spread_out_of_reach():
    assert spread(Grid("*#.")) is None
    assert spread(Grid("...")) is None
