"""Progress tracker: the pools visited, what was undone, what was refused.

    phase      search -> done
    progress   +1.0 when the phase becomes done; +0.02 for a new pool
    error      0.3 for an unreadable action, 0.2 for a refused one, 0.1 for a repeated pool

Values follow Table 6 of the constant-context paper; errors are positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.core.hindsight import component_names, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.countdown.world import Operation, parse_action, parse_observation

PROGRESS: Mapping[str, float] = {"subgoal": 1.0, "new_pool": 0.02}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "refused": 0.2, "repeated": 0.1}
SHOWN_OPENINGS = 4
BOUND = 200
"""maximum characters of a state block, with numbers up to 100"""


@dataclass(frozen=True)
class SearchState:
    numbers: int
    """how many numbers the puzzle began with"""
    pool: tuple[int, ...]
    target: int
    met: frozenset[tuple[int, ...]]
    """every pool seen so far, sorted"""
    openings: tuple[str, ...] = ()
    """the latest distinct first operations, oldest first"""
    undone: int = 0
    phase: str = "search"
    fault: str = ""
    """the error of the last action, a key of ERRORS"""


class CountdownTracker:
    version = "countdown-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> SearchState:
        shown = parse_observation(observation.text)
        return SearchState(len(shown.pool), shown.pool, shown.target, frozenset([_key(shown.pool)]))

    def update(self, state: SearchState, action: str, transition: Transition) -> SearchState:
        parsed = parse_action(action)
        if not transition.effective:
            return replace(state, fault="refused" if parsed else "unreadable")
        pool = parse_observation(transition.observation.text).pool
        fault, openings, undone = "", state.openings, state.undone
        if isinstance(parsed, Operation):
            if _key(pool) in state.met:
                fault = "repeated"
            if len(state.pool) == state.numbers:
                openings = (*(o for o in openings if o != str(parsed)), str(parsed))[-SHOWN_OPENINGS:]
        else:
            undone += 1
        return replace(
            state,
            pool=pool,
            met=state.met | {_key(pool)},
            openings=openings,
            undone=undone,
            phase="done" if transition.success else "search",
            fault=fault,
        )

    def render(self, state: SearchState) -> str:
        lines = [
            f"phase: {state.phase}",
            f"operations done: {state.numbers - len(state.pool)} of {state.numbers - 1}",
            f"undone so far: {state.undone}",
        ]
        if state.openings:
            lines.append(f"first operations tried: {'; '.join(state.openings)}")
        return "\n".join(lines)

    def signals(self, before: SearchState, after: SearchState) -> Mapping[str, float]:
        progress = {
            "new_pool": PROGRESS["new_pool"] * (len(after.met) - len(before.met)),
            "subgoal": PROGRESS["subgoal"] * (before.phase != after.phase),
        }
        return sum_signals(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})


def _key(pool: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(pool))
