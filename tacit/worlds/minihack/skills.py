"""The expert, the progress tracker, the skill alphabet, the handbook, failure reasons and hindsight.

Amounts follow Table 6 of the constant-context paper; errors are positive. Nine atomic skills, by the effect of an action (ours,
in the style of ReuseRL); a refused action is BUMP, an unknown one has no skill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random

from tacit.core.hindsight import RuleTracker, critical_steps, most_repeated
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet
from tacit.worlds.minihack import world as game
from tacit.worlds.minihack.world import COMPASS, LEVELS, Place, Scene, find_path, parse_action, parse_scene, shift

RIVER = 2  # width of the river
_WALKED = game.FLOOR + game.THINGS + game.YOU
_OPEN = _WALKED.replace(game.STAIRS, "") + game.UNSEEN  # squares to push a boulder to; unseen ones may be walls


def push_plan(scene: Scene, stuck: Collection[tuple[Place, str]]) -> list[str] | None:
    """Moves that push a boulder into the river: into the second square of a row whose first is filled, else into the first
    square of any row; nearest boulders first. None if there is no plan. `stuck`: pushes that failed."""
    west, rows = min((column for _, column in scene.find(game.WATER)), default=None), range(len(scene.rows))
    if west is None:
        return None
    row_starts = {(row, west + 1) for row in rows if scene.at((row, west)) in _WALKED}
    banks = {place for place in row_starts if scene.at(place) in game.WATER + game.UNSEEN} or {(row, west) for row in rows}
    ordered = sorted(
        scene.find(game.BOULDER), key=lambda place: (min(abs(place[0] - r) + abs(c - place[1]) for r, c in banks), place)
    )
    return next((plan for boulder in ordered if (plan := _push_boulder(scene, boulder, banks, stuck)) is not None), None)


def crossing(scene: Scene) -> int | None:
    """The first column beyond the river if a row is bridged; None if none is, or if there is no river."""
    west = min((column for _, column in scene.find(game.WATER)), default=None)
    if west is None:
        return None
    bridged = any(all(scene.at((row, west + i)) in _WALKED for i in range(RIVER)) for row in range(len(scene.rows)))
    return west + RIVER if bridged else None


def _push_boulder(
    scene: Scene, boulder: Place, banks: Collection[Place], stuck: Collection[tuple[Place, str]]
) -> list[str] | None:
    """Moves that push the boulder to one of the banks, by breadth-first search over (agent, boulder); None if impossible."""
    if scene.here is None:
        return None
    start = (scene.here, boulder)
    came: dict[tuple[Place, Place], tuple[str, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        me, stone = state
        for word in COMPASS:
            there = shift(me, word)
            pushed = there == stone
            beyond = shift(stone, word) if pushed else there
            if pushed and (stone, word) in stuck:
                continue
            if pushed and beyond in banks:
                return [*came[state], word]
            moved = (there, beyond if pushed else stone)
            if (scene.at(beyond) in _OPEN or beyond == boulder) and moved not in came:
                came[moved] = (*came[state], word)
                queue.append(moved)
    return None


class Explorer:
    """Uses only observations: walks to the stairs if they are visible, else explores."""

    def __init__(self, task: Task) -> None:
        self._level = LEVELS[str(task.data["level"])]
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
        self._before = scene, self._choose(scene)
        return self._before[1]

    def happened(self, action: str) -> None:
        word = parse_action(action, self._level)
        if self._before is not None and word != self._before[1]:
            self._before, self._plan = (self._before[0], word), []

    def _learn(self, scene: Scene) -> None:
        here = scene.here
        if here is None:
            return
        self._visited.add(here)
        self._doors.update(scene.find(game.OPEN_DOOR))
        self._keys.update(scene.find(game.KEY))
        if self._before is None:
            return
        before, word = self._before
        if word in COMPASS and before.here == here:
            aim = shift(here, word)
            if before.at(aim) == game.BOULDER and scene.at(aim) == game.BOULDER:
                self._stuck.add((aim, word))
                self._plan = []
            elif aim not in before.monsters and scene.at(aim) not in (game.DOOR, game.BOULDER):
                self._blocked.add((here, word))
                self._plan = []
        elif word == game.PICK_UP:
            self._keys.discard(here)

    def _choose(self, scene: Scene) -> str:
        here = scene.here
        if here is None:  # something covers the agent: attack
            return "north"
        if word := self._walk(scene, game.stairs(scene)):
            return word
        if game.APPLY in self._level.actions and (word := self._use_key(scene, here)):
            return word
        if scene.find(game.WATER) and (word := self._cross_river(scene, here)):
            return word
        word = self._walk(scene, game.unexplored(scene, self._visited)) or self._walk(scene, lambda p: p not in self._visited)
        if word:
            return word
        words = [word for word in COMPASS if (here, word) not in self._blocked] or list(COMPASS)
        return words[len(self._visited) % len(words)]  # nothing left to explore: vary the direction

    def _walk(self, scene: Scene, reached: Callable[[Place], bool]) -> str:
        """The first move towards a place that satisfies `reached`; empty if there is none, or if the agent is there."""
        path = find_path(scene, reached, self._blocked, self._doors)
        return path[0] if path else ""

    def _use_key(self, scene: Scene, here: Place) -> str:
        """The next action to get the key, then to unlock the door; empty if neither is known."""
        if not scene.holds:
            return game.PICK_UP if here in self._keys else self._walk(scene, lambda place: place in self._keys)
        beside = {shift(door, word) for door in scene.find(game.DOOR) for word in COMPASS if not all(COMPASS[word])}
        return game.APPLY if here in beside else self._walk(scene, lambda place: place in beside)

    def _cross_river(self, scene: Scene, here: Place) -> str:
        """Cross if possible, else push boulders. Keeps its plan while no new boulder is visible and only the pushed one has
        moved."""
        beyond = crossing(scene)
        if beyond is not None:
            way = find_path(scene, lambda place: place[1] >= beyond - 1, self._blocked) if here[1] < beyond - 1 else None
            return way[0] if way else ""
        before, now = (self._before[0].find(game.BOULDER) if self._before else []), scene.find(game.BOULDER)
        if not self._plan or self._before is None or len({*before} ^ {*now}) > 2 or len(now) > len(before):
            self._plan = push_plan(scene, self._stuck) or []
        return self._plan.pop(0) if self._plan else ""


BOULDERS = 2  # needed to cross the river
BOUND = 220  # maximum characters of a state block


@dataclass(frozen=True)
class MiniHackState:
    family: str
    here: Place | None
    turns: int = 0
    visited: frozenset[Place] = frozenset()
    came_from: Place | None = None
    last: str = ""
    achieved: frozenset[str] = frozenset()  # subgoals reached so far
    phase: str = "explore"
    fault: str = ""  # the error of the last action, a key of `errors`


class MiniHackTracker(RuleTracker):
    version = "minihack-1"
    progress = {"subgoal": 1.0, "new_square": 0.02}
    errors = {"unreadable": 0.3, "died": 0.3, "refused": 0.2, "back": 0.1}

    def start(self, task: Task, observation: Observation) -> MiniHackState:
        family, scene = str(task.data["level"]), parse_scene(observation.text)
        state = MiniHackState(family, scene.here, visited=frozenset({scene.here} if scene.here else ()))
        achieved = _achieved(state, scene, False)
        return replace(state, achieved=achieved, phase=_phase(family, achieved))

    def update(self, state: MiniHackState, action: str, transition: Transition) -> MiniHackState:
        word = parse_action(action, LEVELS[state.family])
        scene = parse_scene(transition.observation.text)
        achieved = _achieved(state, scene, transition.success)
        moved = scene.here is not None and scene.here != state.here
        back = moved and scene.here == state.came_from
        fault = "died" if transition.label == game.DIED else "refused" if not transition.effective else "back" if back else ""
        return replace(
            state,
            here=scene.here or state.here,
            turns=state.turns + 1,
            visited=state.visited | ({scene.here} if scene.here else set()),
            came_from=state.here if moved else state.came_from,
            last=word or "nothing",
            achieved=achieved,
            phase=_phase(state.family, achieved),
            fault=fault if word else "unreadable",
        )

    def render(self, state: MiniHackState) -> str:
        been = [word for word in COMPASS if state.here and shift(state.here, word) in state.visited]
        lines = [f"phase: {state.phase}", f"turns left: {max(LEVELS[state.family].turns - state.turns, 0)}"]
        if state.last:
            lines.append(f"last: {state.last}{' (refused)' if state.fault in ('refused', 'unreadable') else ''}")
        lines.append(f"been to: {', '.join(been) or 'nothing'}")
        if "sunk 1" in state.achieved:
            lines.append(f"boulders sunk: {sum(f'sunk {n}' in state.achieved for n in range(1, BOULDERS + 1))}")
        return "\n".join(lines)

    def count(self, before: MiniHackState, after: MiniHackState) -> Mapping[str, float]:
        new = len(after.visited - before.visited)
        return {"subgoal": len(after.achieved - before.achieved), "new_square": new}


def _achieved(state: MiniHackState, scene: Scene, success: bool) -> frozenset[str]:
    names = set(state.achieved)
    sunk = sum(name.startswith("sunk") for name in names)
    reached = {
        "key": scene.holds,
        "door": scene.find(game.OPEN_DOOR) or ((scene.holds or "key" in names) and "door opens" in scene.message),
        f"sunk {min(sunk + 1, BOULDERS)}": "boulder into the water" in scene.message,
        "stairs seen": scene.find(game.STAIRS) or success,
        "stairs": success,
    }
    return frozenset(names | {name for name, met in reached.items() if met})


def _phase(family: str, achieved: frozenset[str]) -> str:
    if "stairs" in achieved:
        return "done"
    if family == "keyroom" and "door" not in achieved:
        return "unlock" if "key" in achieved else "find_key"
    if family == "river" and f"sunk {BOULDERS}" not in achieved:
        return "bridge"
    return "explore"


def project(trajectory: Trajectory) -> Iterator[str]:
    level, visited = LEVELS[str(trajectory.task.data["level"])], set[Place]()
    for step, after in zip(trajectory.steps, trajectory.observations[1:], strict=True):
        word = parse_action(step.action, level)
        if not word or not step.effective or word in (game.PICK_UP, game.APPLY):
            if word:
                yield "BUMP" if not step.effective else "PICK_UP" if word == game.PICK_UP else "UNLOCK"
            continue
        seen, now = parse_scene(step.observation.text), parse_scene(after.text)
        aim = shift(seen.here, word) if seen.here else None
        if seen.here is None or aim is None:
            yield "MOVE-KNOWN"
            continue
        visited.add(seen.here)
        if aim in seen.monsters:
            yield "FIGHT"
        elif seen.at(aim) == game.BOULDER:
            yield "SINK" if "into the water" in now.message else "PUSH"
        elif seen.at(aim) == game.STAIRS:
            yield "GOAL"
        else:
            yield "MOVE-KNOWN" if now.here in visited else "MOVE-NEW"


SKILLS = ("MOVE-NEW", "MOVE-KNOWN", "GOAL", "FIGHT", "PUSH", "SINK", "PICK_UP", "UNLOCK", "BUMP")
ALPHABET = Alphabet(SKILLS, project)
HANDBOOK = {
    "": (
        "walk straight to the stairs > once they are seen; until then go where nothing has been seen yet, and do not step back "
        "to where you came from; what is refused once is refused again"
    ),
    "room": "it is five by five: cross it towards the far corner, and walk round monsters rather than fight them",
    "maze": "follow one wall; in a dead end go back to the last branching and take the way not taken",
    "keyroom": "find the key ( and stand on it to pick_up; then stand straight beside the door +, never diagonally, and apply",
    "river": "get behind a boulder ` and push it east into the river }; two in one row make a way across, then go over it",
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: died, no_key or no_door (key room), no_bridge (river), timeout, or the stop reason."""
    if trajectory.end_label == game.DIED:
        return game.DIED
    if trajectory.stop is not StopReason.STEP_LIMIT and trajectory.end_label != game.TIMEOUT:
        return str(trajectory.stop)
    scenes = [parse_scene(observation.text) for observation in trajectory.observations]
    family = trajectory.task.data["level"]
    if family == "keyroom" and not any(scene.holds for scene in scenes):
        return "no_key"
    if family == "keyroom" and not any(scene.find(game.OPEN_DOOR) for scene in scenes):
        return "no_door"
    if family == "river" and sum("boulder into the water" in scene.message for scene in scenes) < BOULDERS:
        return "no_bridge"
    return game.TIMEOUT


_MISSING = {
    "no_key": "look for the key ( before anything else: stand on it and pick_up",
    "no_door": "with the key in hand stand straight beside the door + and apply",
    "no_bridge": "push two boulders ` into the river } before trying to cross it",
}


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its effective actions (`east 3, south, pick_up`); after a failure, what was missing."""
    level = LEVELS[str(trajectory.task.data["level"])]
    steps = critical_steps(trajectory, Explorer(trajectory.task), MiniHackTracker())
    words = [parse_action(step.action, level) for step in trajectory.steps]
    if trajectory.success:
        done = [word for word, step in zip(words, trajectory.steps, strict=True) if step.effective]
        runs = [(word, len(list(same))) for word, same in groupby(done)]
        path = ", ".join(f"{word} {times}" if times > 1 else word for word, times in runs)
        return Skills(path, steps, f"At the stairs after {len(trajectory)} turns.")
    label = failure(trajectory)
    seen = [at[0] for step in trajectory.steps if (at := parse_scene(step.observation.text).find(game.STAIRS))]
    repeated = " ".join(most_repeated(trajectory).split())
    if label in _MISSING:
        advice = _MISSING[label]
    elif label == game.DIED:
        advice = f"do not go {words[-1]} there: it was the end"
    elif seen:
        advice = f"the stairs were in row {seen[0][0] + 1}, column {seen[0][1] + 1}: walk there as soon as they are seen"
    else:
        advice = f"{f'do not {repeated} again and again: ' if repeated else ''}go where nothing has been seen yet"
    return Skills(advice, steps, f"Failed: {label}.")


def place(action: str, observation: Observation) -> str:
    """The agent's square at the start of an episode or after a move; else empty."""
    here = parse_scene(observation.text).here
    return f"{here[0]},{here[1]}" if here and (not action or action in COMPASS) else ""


def questions(rng: Random, observation: Observation) -> list[tuple[str, str]]:
    """Pretraining questions about the neighboring squares: `what is north? boulder`."""
    scene = parse_scene(observation.text)
    if scene.here is None:
        return []
    word = rng.choice(list(COMPASS))
    symbol = scene.at(shift(scene.here, word))
    return [(f"what is {word}", scene.legend.get(symbol, "wall"))]
