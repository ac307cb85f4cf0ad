"""Progress tracker: the queries so far, and the best passage of each.

    phase      search -> done
    progress   +1.0 for each supporting passage when first read (if the file names them) and for the right answer;
               +0.02 for a search with a new passage
    error      0.3 for an unreadable action and for a wrong answer, 0.2 for an empty query or answer,
               0.1 for a search without a new passage

Values follow Table 6 of the constant-context paper; errors are positive. The state block does not show which passages matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tacit.core.hindsight import component_names, sum_signals
from tacit.core.types import Observation, Task, Transition
from tacit.worlds.searchqa.prompt import brief
from tacit.worlds.searchqa.retrieval import parse_passages, sanitize
from tacit.worlds.searchqa.world import MAX_STEPS, parse_action

PROGRESS: Mapping[str, float] = {"subgoal": 1.0, "new_passage": 0.02}
ERRORS: Mapping[str, float] = {"unreadable": 0.3, "wrong": 0.3, "refused": 0.2, "nothing_new": 0.1}
SHOWN_QUERY = 60
BOUND = 900  # maximum characters of a state block


@dataclass(frozen=True)
class SearchState:
    needed: frozenset[str]  # titles of the supporting passages, if known
    queries: tuple[str, ...] = ()
    found: tuple[str, ...] = ()  # the best passage of each search that found a new one
    seen: frozenset[str] = frozenset()  # titles of all passages read
    turns: int = 0
    phase: str = "search"
    fault: str = ""  # the error of the last action, a key of ERRORS


class SearchTracker:
    version = "searchqa-1"
    components = component_names(PROGRESS, ERRORS)

    def start(self, task: Task, observation: Observation) -> SearchState:
        return SearchState(frozenset(map(str, task.data.get("titles", ()))))

    def update(self, state: SearchState, action: str, transition: Transition) -> SearchState:
        after = replace(state, turns=state.turns + 1, fault="")
        kind, said = parse_action(action)
        if not transition.effective:
            return replace(after, fault="refused" if action.strip().lower() in ("search", "answer") else "unreadable")
        if kind == "answer":
            return replace(after, phase="done" if transition.success else "search", fault="" if transition.success else "wrong")
        passages = parse_passages(transition.observation.text)
        new = [passage for passage in passages if passage.title not in state.seen]
        best = next((brief(passage) for passage in passages[:1] if brief(passage) not in state.found), "")
        return replace(
            after,
            queries=(*state.queries, sanitize(said, SHOWN_QUERY))[-MAX_STEPS:],
            found=(*state.found, best)[-MAX_STEPS:] if best else state.found,
            seen=state.seen | {passage.title for passage in passages},
            fault="" if new else "nothing_new",
        )

    def render(self, state: SearchState) -> str:
        lines = [f"phase: {state.phase}", f"turns left: {max(MAX_STEPS - state.turns, 0)}"]
        if state.queries:
            lines.append(f"searched: {'; '.join(state.queries)}")
        if state.found:
            lines.append(f"found: {' | '.join(state.found)}")
        return "\n".join(lines)

    def signals(self, before: SearchState, after: SearchState) -> Mapping[str, float]:
        reached = len(after.needed & after.seen) - len(before.needed & before.seen) + (before.phase != after.phase)
        progress = {
            "subgoal": PROGRESS["subgoal"] * reached,
            "new_passage": PROGRESS["new_passage"] * bool(after.seen - before.seen),
        }
        return sum_signals(progress, {after.fault: ERRORS[after.fault]} if after.fault else {})
