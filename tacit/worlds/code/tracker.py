"""Progress tracker: what was looked at, changed and tested.

    phase      find -> mend (a source file was viewed) -> check (it was edited) -> hand_in (tests pass) -> done
    progress   +1.0 for a solved issue, +0.2 for each phase reached for the first time, +0.1 for fewer failing tests
    error      0.3 for an unreadable action, 0.2 for a refused one, 0.1 for a repeated one, 0.1 for more failing tests

Values follow Table 6 of the constant-context paper; errors are positive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.core.hindsight import component_names, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.code.tools import BASH, EDITOR, check_action, shown_lines
from tacit.worlds.code.world import read_pytest

PROGRESS: Mapping[str, float] = {"subgoal": 1.0, "phase": 0.2, "fewer_failures": 0.1}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "refused": 0.2, "repeated": 0.1, "more_failures": 0.1}
PHASES = ("find", "mend", "check", "hand_in", "done")
SHOWN, LONGEST = 4, 60
BOUND = 1200  # maximum characters of a state block
_COUNTS = re.compile(r"(?:(\d+) failed)?(?:, )?(?:(\d+) passed)?[^\n]* in \d")


@dataclass(frozen=True)
class RepairState:
    viewed: tuple[str, ...] = ()  # the latest `path first-last`, oldest first
    edited: tuple[str, ...] = ()  # the latest edits in place, as actions
    failing: int = -1  # of the last test run; -1: none yet
    passing: int = 0
    fewest: int = -1
    stale: bool = False  # edited since the last test run
    phase: str = "find"
    reached: int = 0  # index of the furthest phase so far
    done: frozenset[str] = frozenset()  # actions since the last change of a file
    fault: str = ""


class RepairTracker:
    version = "code-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> RepairState:
        return RepairState()

    def update(self, state: RepairState, action: str, transition: Transition) -> RepairState:
        call = check_action(action)
        if call is None or not transition.effective:
            return replace(state, fault="refused" if call else "unreadable")
        if transition.done:
            phase = "done" if transition.success else state.phase
            return replace(state, phase=phase, reached=max(state.reached, PHASES.index(phase)), fault="")
        text = transition.observation.text
        repeated = "repeated" if action in state.done else ""
        state = replace(state, fault=repeated, done=state.done | {action})
        if call.name == BASH:
            return self._tested(state, call.arguments["command"], text)
        path, lines = shown_lines(text)
        command = call.arguments["command"] if call.name == EDITOR else ""
        if command == "view":
            seen = f"{path} {min(lines)}-{max(lines)}"[:LONGEST] if lines else ""
            viewed = (*(other for other in state.viewed if other != seen), seen)[-SHOWN:] if seen else state.viewed
            return self._enter(replace(state, viewed=viewed), "mend" if path and state.phase == "find" else state.phase)
        if command == "undo_edit":
            return self._enter(replace(state, edited=state.edited[:-1], stale=True, done=frozenset()), "mend")
        shown = action if len(action) <= 2 * LONGEST else f"{action[: 2 * LONGEST - 1]}…"
        edited = (*state.edited, shown)[-SHOWN:]
        return self._enter(replace(state, edited=edited, stale=True, done=frozenset()), "check")

    def _tested(self, state: RepairState, command: str, text: str) -> RepairState:
        found = _COUNTS.search(text)
        if "pytest" not in command or not found or not (found[1] or found[2]):
            return state
        failing, passing = int(found[1] or 0), int(found[2] or 0)
        worse = state.failing >= 0 and failing > state.failing
        fewest = failing if state.fewest < 0 else min(failing, state.fewest)
        tested = replace(state, failing=failing, passing=passing, fewest=fewest, stale=False)
        tested = replace(tested, fault=tested.fault or ("more_failures" if worse else ""))
        whole = read_pytest(command) is not None
        return self._enter(tested, "hand_in" if failing == 0 and whole and state.edited else state.phase)

    def _enter(self, state: RepairState, phase: str) -> RepairState:
        return replace(state, phase=phase, reached=max(state.reached, PHASES.index(phase)))

    def render(self, state: RepairState) -> str:
        lines = [f"phase: {state.phase}"]
        if state.viewed:
            lines.append(f"viewed: {'; '.join(state.viewed)}")
        if state.edited:
            lines.append("edits: " + "; ".join(state.edited))
        if state.failing >= 0:
            stale = ", before the last edit" if state.stale else ""
            lines.append(f"tests: {state.failing} failed, {state.passing} passed{stale}")
        return "\n".join(lines)[:BOUND]

    def signals(self, before: RepairState, after: RepairState) -> Mapping[str, float]:
        solved = after.phase == "done" and before.phase != "done"
        fewer = before.fewest - after.fewest if before.fewest >= 0 else 0
        progress = {
            "subgoal": PROGRESS["subgoal"] * solved,
            "phase": PROGRESS["phase"] * (after.reached > before.reached and not solved),
            "fewer_failures": PROGRESS["fewer_failures"] * (fewer > 0),
        }
        return sum_signals(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})
