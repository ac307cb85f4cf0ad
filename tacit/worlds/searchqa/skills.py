"""The oracle, the progress tracker, the skill alphabet, the handbook, failure reasons and hindsight.

Amounts follow Table 6 of the constant-context paper; errors are positive. The state block does not show which passages matter.
Nine atomic skills, by the source of the words: the question, a passage that was read (FOUND), or neither (OWN).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tacit.core.hindsight import RuleTracker, critical_steps
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.searchqa.retrieval import content_words, f1, normalize_answer, parse_passages, sanitize, sanitize_passage
from tacit.worlds.searchqa.world import MAX_STEPS, WRONG, brief, parse_action


class Oracle:
    """Knows the answer and the supporting titles: searches for each title in order, then answers. With more titles than turns,
    it joins some into one query. Without titles, it searches for the question."""

    def __init__(self, task: Task) -> None:
        titles = [str(title) for title in task.data.get("titles", ())] or [task.goal]
        turns = min(MAX_STEPS - 1, len(titles))
        bounds = [len(titles) * i // turns for i in range(turns + 1)]
        queries = [" ".join(titles[a:b]) for a, b in pairwise(bounds)]
        self._answer = f"answer {task.data['answers'][0]}"
        self._left = [f"search {query}" for query in queries]

    def act(self, observation: Observation) -> str:
        return self._left.pop(0) if self._left else self._answer


SHOWN_QUERY = 60
BOUND = 900  # maximum characters of a state block


@dataclass(frozen=True)
class SearchState:
    needed: frozenset[str]  # titles of the supporting passages, if known
    queries: tuple[str, ...] = ()
    best_passages: tuple[str, ...] = ()  # the best passage of each search, if new
    seen: frozenset[str] = frozenset()  # titles of all passages read
    turns: int = 0
    phase: str = "search"
    fault: str = ""  # the error of the last action, a key of `errors`


class SearchTracker(RuleTracker):
    version = "searchqa-1"
    progress = {"subgoal": 1.0, "new_passage": 0.02}
    errors = {"unreadable": 0.3, "wrong": 0.3, "refused": 0.2, "nothing_new": 0.1}

    def start(self, task: Task, observation: Observation) -> SearchState:
        return SearchState(frozenset(map(str, task.data.get("titles", ()))))

    def update(self, state: SearchState, action: str, transition: Transition) -> SearchState:
        after = replace(state, turns=state.turns + 1, fault="")
        kind, query = parse_action(action)
        if not transition.effective:
            return replace(after, fault="refused" if action.strip().lower() in ("search", "answer") else "unreadable")
        if kind == "answer":
            return replace(after, phase="done" if transition.success else "search", fault="" if transition.success else "wrong")
        passages = parse_passages(transition.observation.text)
        new = [passage for passage in passages if passage.title not in state.seen]
        best = next((brief(passage) for passage in passages[:1] if brief(passage) not in state.best_passages), "")
        return replace(
            after,
            queries=(*state.queries, sanitize(query, SHOWN_QUERY))[-MAX_STEPS:],
            best_passages=(*state.best_passages, best)[-MAX_STEPS:] if best else state.best_passages,
            seen=state.seen | {passage.title for passage in passages},
            fault="" if new else "nothing_new",
        )

    def render(self, state: SearchState) -> str:
        lines = [f"phase: {state.phase}", f"turns left: {max(MAX_STEPS - state.turns, 0)}"]
        if state.queries:
            lines.append(f"searched: {'; '.join(state.queries)}")
        if state.best_passages:
            lines.append(f"found: {' | '.join(state.best_passages)}")
        return "\n".join(lines)

    def count(self, before: SearchState, after: SearchState) -> Mapping[str, float]:
        reached = len(after.needed & after.seen) - len(before.needed & before.seen) + (before.phase != after.phase)
        return {"subgoal": reached, "new_passage": bool(after.seen - before.seen)}


SKILLS = (
    *(f"SEARCH-{source}" for source in ("QUESTION", "NAMED", "FOUND", "OWN", "AGAIN")),
    *(f"ANSWER-{source}" for source in ("FOUND", "NAMED", "YES_NO", "OWN")),
)


def project(trajectory: Trajectory) -> Iterator[str]:
    question, seen, queries = str(trajectory.task.data["question"]), "", set[str]()
    for step in trajectory.steps:
        seen = " ".join([seen, *(f"{title} {text}" for title, text in parse_passages(step.observation.text))])
        kind, words = parse_action(step.action)
        plain = normalize_answer(words)
        if kind == "search":
            own = set(content_words(words)) - set(content_words(question))
            if plain in queries:
                yield "SEARCH-AGAIN"
            elif f1(words, [question]) >= 0.8:
                yield "SEARCH-QUESTION"
            else:
                yield "SEARCH-NAMED" if not own else "SEARCH-FOUND" if own <= set(content_words(seen)) else "SEARCH-OWN"
            queries.add(plain)
        elif kind == "answer":
            if plain in ("yes", "no"):
                yield "ANSWER-YES_NO"
            elif f" {plain} " in f" {normalize_answer(question)} ":
                yield "ANSWER-NAMED"
            else:
                yield "ANSWER-FOUND" if f" {plain} " in f" {normalize_answer(seen)} " else "ANSWER-OWN"


ALPHABET = Alphabet(SKILLS, project)
HANDBOOK = {
    "": (
        "search for a name in the question, not for the whole question; read what was found before searching again; keep the "
        "last turn for the answer, and answer with the name or number alone"
    ),
    "bridge": "search for the one who is named first, then for whoever that passage names, until a passage says what is asked",
    "comparison": "search for each of the two by name, one after the other, and compare what their passages say",
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed. `misread`: a read passage had the answer (for yes and no: all supporting passages were read)."""
    if trajectory.stop is StopReason.STEP_LIMIT:
        return "no_answer"
    if trajectory.end_label != WRONG:
        return str(trajectory.stop)
    passages = [passage for step in trajectory.steps for passage in parse_passages(step.observation.text)]
    if not passages:
        return "no_search"
    data = trajectory.task.data
    answers = [normalize_answer(str(answer)) for answer in data["answers"]]
    if set(answers) <= {"yes", "no"}:
        read_of = {passage.title for passage in passages}
        return "misread" if read_of >= set(data.get("titles", ())) else "not_found"
    text = f" {normalize_answer(' '.join(f'{title} {text}' for title, text in passages))} "
    return "misread" if any(f" {answer} " in text for answer in answers) else "not_found"


_LONGEST = 200  # maximum characters of an answer or a question


class _Adviser(ByReading):
    """Searches for the first unread supporting passage; answers once all were read, or in the last turn."""

    def __init__(self, task: Task) -> None:
        self._left, self._turn = _queries(task), 0
        self._answer = _answer(task)

    def act(self, observation: Observation) -> str:
        seen = {passage.title for passage in parse_passages(observation.text)}
        self._left = [title for title in self._left if title not in seen]
        self._turn += 1
        search = self._left and self._turn < MAX_STEPS
        return f"search {self._left[0]}" if search else f"answer {self._answer}"


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its searches; after a failure, searches that find the answer. Uses the gold titles and answer."""
    task = trajectory.task
    steps = critical_steps(trajectory, _Adviser(task), SearchTracker())
    if trajectory.success:
        done = dict.fromkeys(sanitize(step.action, _LONGEST) for step in trajectory.steps if step.effective)
        return Skills("; ".join(done), steps, f"Answered in {len(trajectory)} turns.")
    label, answer = failure(trajectory), _answer(task)
    way = f"{'; '.join(f'search {title}' for title in _queries(task))}; answer {answer}"
    advice = f"it stood in what was read: answer {answer}" if label == "misread" else way
    if label == "no_answer":
        steps = {**steps, len(trajectory) - 1: f"answer {answer}"}
        advice = f"answer before the turns run out: {way}"
    return Skills(advice, steps, f"Failed: {label}.")


def _queries(task: Task) -> list[str]:
    return [sanitize_passage(str(title), "").title for title in task.data.get("titles", ())] or [sanitize(task.goal, _LONGEST)]


def _answer(task: Task) -> str:
    return sanitize(str(task.data["answers"][0]), _LONGEST)
