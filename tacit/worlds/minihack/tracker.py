"""Progress tracker: the phase, the turns left, and which neighboring squares were visited.

    phase      explore, find_key, unlock, bridge -> done
    progress   +1.0 per subgoal: key held, door open, each of two boulders sunk, stairs seen, stairs reached;
               +0.02 for a new square
    error      0.3 for an unreadable action and for dying, 0.2 for a refused action, 0.1 for stepping straight back

Values follow Table 6 of the constant-context paper; errors are positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.core.hindsight import component_names, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.minihack.world import COMPASS, DIED, LEVELS, OPEN_DOOR, STAIRS, Place, Scene, parse_action, parse_scene, shift

PROGRESS: Mapping[str, float] = {"subgoal": 1.0, "new_square": 0.02}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "died": 0.3, "refused": 0.2, "back": 0.1}
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
    fault: str = ""  # the error of the last action, a key of ERRORS


class MiniHackTracker:
    version = "minihack-1"
    components = component_names(PROGRESS, ERRORS)

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
        fault = ""
        if not word:
            fault = "unreadable"
        elif transition.label == DIED:
            fault = "died"
        elif not transition.effective:
            fault = "refused"
        elif moved and scene.here == state.came_from:
            fault = "back"
        return replace(
            state,
            here=scene.here or state.here,
            turns=state.turns + 1,
            visited=state.visited | ({scene.here} if scene.here else set()),
            came_from=state.here if moved else state.came_from,
            last=word or "nothing",
            achieved=achieved,
            phase=_phase(state.family, achieved),
            fault=fault,
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

    def signals(self, before: MiniHackState, after: MiniHackState) -> Mapping[str, float]:
        progress = {
            "subgoal": PROGRESS["subgoal"] * len(after.achieved - before.achieved),
            "new_square": PROGRESS["new_square"] * len(after.visited - before.visited),
        }
        return sum_signals(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})


def _achieved(state: MiniHackState, scene: Scene, success: bool) -> frozenset[str]:
    found = set(state.achieved)
    if scene.holds:
        found.add("key")
    if scene.find(OPEN_DOOR) or ("key" in found and "door opens" in scene.message):
        found.add("door")
    if "boulder into the water" in scene.message:
        sunk = sum(name.startswith("sunk") for name in found)
        found.add(f"sunk {min(sunk + 1, BOULDERS)}")
    if scene.find(STAIRS) or success:
        found.add("stairs seen")
    if success:
        found.add("stairs")
    return frozenset(found)


def _phase(family: str, achieved: frozenset[str]) -> str:
    if "stairs" in achieved:
        return "done"
    if family == "keyroom" and "door" not in achieved:
        return "unlock" if "key" in achieved else "find_key"
    if family == "river" and f"sunk {BOULDERS}" not in achieved:
        return "bridge"
    return "explore"
