"""An expert that acts on what it has seen: it walks to the stairs if they are visible, and explores otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from tacit.core.types import Observation, Task
from tacit.worlds.minihack.world import (
    APPLY,
    BOULDER,
    COMPASS,
    DOOR,
    FLOOR,
    KEY,
    LEVELS,
    OPEN_DOOR,
    PICK_UP,
    STAIRS,
    THINGS,
    UNSEEN,
    WATER,
    YOU,
    Place,
    Scene,
    find_path,
    parse_scene,
    shift,
    stairs,
    unexplored,
)

RIVER = 2  # width of the river
_OPEN = FLOOR.replace(STAIRS, "") + THINGS + YOU + UNSEEN  # squares a boulder can be pushed over, as far as known


def push_plan(scene: Scene, stuck: Collection[tuple[Place, str]]) -> list[str] | None:
    """Moves that push a boulder into the river where it helps; None if there are none. `stuck` are pushes that failed. Tries
    the nearest boulders first."""
    banks = _banks(scene)
    if not banks:
        return None
    ordered = sorted(
        scene.find(BOULDER), key=lambda place: (min(abs(place[0] - r) + abs(c - place[1]) for r, c in banks), place)
    )
    for boulder in ordered:
        plan = _push_boulder(scene, boulder, banks, stuck)
        if plan is not None:
            return plan
    return None


def crossing(scene: Scene) -> int | None:
    """The first column beyond a river that can be crossed; None if it cannot be, or if there is none."""
    west = min((column for _, column in scene.find(WATER)), default=None)
    if west is None:
        return None
    rows = range(len(scene.rows))
    bridged = any(all(scene.at((row, west + i)) in FLOOR + THINGS + YOU for i in range(RIVER)) for row in rows)
    return west + RIVER if bridged else None


def _banks(scene: Scene) -> set[Place]:
    """Where a boulder helps: the second square of rows whose first is filled, else the first square of any row."""
    west = min((column for _, column in scene.find(WATER)), default=None)
    if west is None:
        return set()
    rows = range(len(scene.rows))
    begun = {(row, west + 1) for row in rows if scene.at((row, west)) in FLOOR + THINGS + YOU}
    return {place for place in begun if scene.at(place) in WATER + UNSEEN} or {(row, west) for row in rows}


def _push_boulder(
    scene: Scene, boulder: Place, banks: Collection[Place], stuck: Collection[tuple[Place, str]]
) -> list[str] | None:
    """Breadth-first search over (agent, boulder), with the other boulders fixed."""
    here = scene.here
    if here is None:
        return None
    start = (here, boulder)
    came: dict[tuple[Place, Place], tuple[tuple[Place, Place], str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        me, stone = state
        for word in COMPASS:
            there = shift(me, word)
            if there != stone:
                moved = (there, stone)
                if not (scene.at(there) in _OPEN or there == boulder):
                    continue
            else:
                beyond = shift(stone, word)
                if (stone, word) in stuck:
                    continue
                if beyond in banks:
                    return [*_trace_back(came, state), word]
                if not (scene.at(beyond) in _OPEN or beyond == boulder):
                    continue
                moved = (there, beyond)
            if moved not in came:
                came[moved] = (state, word)
                queue.append(moved)
    return None


def _trace_back(
    came: dict[tuple[Place, Place], tuple[tuple[Place, Place], str] | None], state: tuple[Place, Place]
) -> list[str]:
    words: list[str] = []
    while (step := came[state]) is not None:
        state, word = step
        words.append(word)
    return words[::-1]


class Explorer:
    def __init__(self, task: Task) -> None:
        self._actions = LEVELS[str(task.data["level"])].actions
        self._visited: set[Place] = set()
        self._doors: set[Place] = set()
        self._keys: set[Place] = set()
        self._blocked: set[tuple[Place, str]] = set()  # moves that failed
        self._stuck: set[tuple[Place, str]] = set()  # pushes that failed
        self._before: tuple[Scene, str] | None = None
        self._plan: list[str] = []

    def act(self, observation: Observation) -> str:
        scene = parse_scene(observation.text)
        self._learn(scene)
        word = self._choose(scene)
        self._before = scene, word
        return word

    def happened(self, action: str) -> None:
        if self._before is not None and action != self._before[1]:
            self._before, self._plan = (self._before[0], action), []

    def _learn(self, scene: Scene) -> None:
        here = scene.here
        if here is None:
            return
        self._visited.add(here)
        self._doors.update(scene.find(OPEN_DOOR))
        self._keys.update(scene.find(KEY))
        if self._before is None:
            return
        before, word = self._before
        if word in COMPASS and before.here == here:
            aim = shift(here, word)
            if before.at(aim) == BOULDER and scene.at(aim) == BOULDER:
                self._stuck.add((aim, word))
                self._plan = []
            elif aim not in before.monsters and scene.at(aim) not in (DOOR, BOULDER):
                self._blocked.add((here, word))
                self._plan = []
        elif word == PICK_UP:
            self._keys.discard(here)

    def _choose(self, scene: Scene) -> str:
        here = scene.here
        if here is None:  # something covers the agent: attack
            return "north"
        done = find_path(scene, stairs(scene), self._blocked, self._doors)
        if done:
            return done[0]
        if APPLY in self._actions:
            word = self._use_key(scene, here)
            if word:
                return word
        word = self._cross_river(scene, here) if scene.find(WATER) else ""
        if word:
            return word
        about = find_path(scene, unexplored(scene, self._visited), self._blocked, self._doors)
        if about:
            return about[0]
        fresh = find_path(scene, lambda place: place not in self._visited, self._blocked, self._doors)
        return fresh[0] if fresh else self._fall_back(here)

    def _use_key(self, scene: Scene, here: Place) -> str:
        """The key first, then the door."""
        if not scene.holds:
            if here in self._keys:
                return PICK_UP
            way = find_path(scene, lambda place: place in self._keys, self._blocked, self._doors)
            return way[0] if way else ""
        beside = {shift(door, word) for door in scene.find(DOOR) for word in COMPASS if not all(COMPASS[word])}
        if here in beside:
            return APPLY
        way = find_path(scene, lambda place: place in beside, self._blocked, self._doors)
        return way[0] if way else ""

    def _cross_river(self, scene: Scene, here: Place) -> str:
        """Cross if possible, else push boulders. A plan is followed while the boulders are where it expects them."""
        beyond = crossing(scene)
        if beyond is not None:
            way = find_path(scene, lambda place: place[1] >= beyond - 1, self._blocked) if here[1] < beyond - 1 else None
            return way[0] if way else ""
        if not (self._plan and self._before is not None and self._as_planned(scene)):
            self._plan = push_plan(scene, self._stuck) or []
        return self._plan.pop(0) if self._plan else ""

    def _as_planned(self, scene: Scene) -> bool:
        """No new boulder is visible, and none but the pushed one has moved."""
        assert self._before is not None
        moved = set(self._before[0].find(BOULDER)) ^ set(scene.find(BOULDER))
        return len(moved) <= 2 and len(scene.find(BOULDER)) <= len(self._before[0].find(BOULDER))

    def _fall_back(self, here: Place) -> str:
        """Nothing is left to explore: try the untried directions from here in turn."""
        words = [word for word in COMPASS if (here, word) not in self._blocked] or list(COMPASS)
        return words[len(self._visited) % len(words)]
