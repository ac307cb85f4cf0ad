"""Searches over grids. Walls are `#`."""

import heapq
from collections import deque


def reachable(grid, start, wall="#"):
    """The number of steps to every place that can be reached."""
    steps = {start: 0}
    queue = deque([start])
    while queue:
        place = queue.popleft()
        for other in grid.neighbors(place):
            if other not in steps and grid[other] != wall:
                steps[other] = steps[place] + 1
                queue.append(other)
    return steps


def shortest_path(grid, start, goal, wall="#"):
    """The places of a shortest path, both ends included, or None."""
    steps = reachable(grid, start, wall)
    if goal not in steps:
        return None
    path = [goal]
    while path[-1] != start:
        here = path[-1]
        for other in grid.neighbors(here):
            if steps.get(other, -1) == steps[here] - 1:
                path.append(other)
                break
    path.reverse()
    return path


def cheapest(grid, start, goal):
    """The least sum of digits on a path; the start costs nothing."""
    best = {start: 0}
    queue = [(0, start)]
    while queue:
        cost, place = heapq.heappop(queue)
        if place == goal:
            return cost
        if cost > best[place]:
            continue
        for other in grid.neighbors(place):
            if grid[other] == "#":
                continue
            total = cost + int(grid[other])
            if other not in best or total < best[other]:
                best[other] = total
                heapq.heappush(queue, (total, other))
    return None


def components(grid, value, diagonal=False):
    """The connected regions of this value, largest first."""
    seen, found = set(), []
    for start in grid.places():
        if start in seen or grid[start] != value:
            continue
        region, stack = [], [start]
        seen.add(start)
        while stack:
            place = stack.pop()
            region.append(place)
            for other in grid.neighbors(place, diagonal):
                if other not in seen and grid[other] == value:
                    seen.add(other)
                    stack.append(other)
        found.append(sorted(region))
    return sorted(found, key=lambda region: (-len(region), region))


def flood(grid, start, value):
    """Fill the region of the start with another value. Returns how many places changed."""
    old = grid[start]
    if old == value:
        return 0
    changed, stack = 0, [start]
    while stack:
        place = stack.pop()
        if grid[place] != old:
            continue
        grid[place] = value
        changed += 1
        stack.extend(grid.neighbors(place))
    return changed


def spread(grid, source="*", free="."):
    """How many rounds until the sources have spread to all free places; None where some are out of reach."""
    front = [place for place in grid.places() if grid[place] == source]
    left = grid.count(free)
    taken, rounds = set(front), 0
    while left > 0 and front:
        following = []
        for place in front:
            for other in grid.neighbors(place):
                if other not in taken and grid[other] == free:
                    taken.add(other)
                    following.append(other)
        left -= len(following)
        front = following
        if following:
            rounds += 1
    return rounds if left == 0 else None
