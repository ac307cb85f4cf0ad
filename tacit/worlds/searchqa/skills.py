"""Skill alphabet, handbook, failure reasons and hindsight.

Nine atomic skills by the source of the words (ours, in the style of ReuseRL):

    SEARCH-QUESTION   the question itself, or nearly (F1 of the words at least 0.8)
    SEARCH-NAMED      words of the question only
    SEARCH-FOUND      other words from a passage that was read: the next link of a chain
    SEARCH-OWN        words from neither
    SEARCH-AGAIN      a repeated query
    ANSWER-FOUND      in a passage that was read
    ANSWER-NAMED      in the question
    ANSWER-YES_NO     yes or no
    ANSWER-OWN        from neither
"""

from __future__ import annotations

from collections.abc import Iterator

from tacit.core.hindsight import Skills, critical_steps
from tacit.core.types import Observation, StopReason, Task, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.searchqa.retrieval import content_words, f1, normalize_answer, parse_passages, sanitize, sanitize_passage
from tacit.worlds.searchqa.tracker import SearchTracker
from tacit.worlds.searchqa.world import MAX_STEPS, WRONG, parse_action

SKILLS = (
    *(f"SEARCH-{made}" for made in ("QUESTION", "NAMED", "FOUND", "OWN", "AGAIN")),
    *(f"ANSWER-{made}" for made in ("FOUND", "NAMED", "YES_NO", "OWN")),
)


def project(trajectory: Trajectory) -> Iterator[str]:
    question = str(trajectory.task.data["question"])
    seen, queries = "", set[str]()
    for step in trajectory.steps:
        seen = " ".join([seen, *(f"{title} {text}" for title, text in parse_passages(step.observation.text))])
        kind, said = parse_action(step.action)
        if kind == "search":
            yield f"SEARCH-{_query(said, question, seen, queries)}"
            queries.add(normalize_answer(said))
        elif kind == "answer":
            yield f"ANSWER-{_answer_skill(said, question, seen)}"


def _query(said: str, question: str, seen: str, queries: set[str]) -> str:
    if normalize_answer(said) in queries:
        return "AGAIN"
    if f1(said, [question]) >= 0.8:
        return "QUESTION"
    own = set(content_words(said)) - set(content_words(question))
    if not own:
        return "NAMED"
    return "FOUND" if own <= set(content_words(seen)) else "OWN"


def _answer_skill(said: str, question: str, seen: str) -> str:
    answer = f" {normalize_answer(said)} "
    if answer.strip() in ("yes", "no"):
        return "YES_NO"
    if answer in f" {normalize_answer(question)} ":
        return "NAMED"
    return "FOUND" if answer in f" {normalize_answer(seen)} " else "OWN"


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
    """Why an episode failed. A yes/no answer counts as read once all supporting passages were.

    no_answer    out of turns
    no_search    answered wrongly without searching
    not_found    answered wrongly, and no passage that was read has the answer
    misread      answered wrongly although a passage had the answer
    """
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


_TRACKER = SearchTracker()
_LONGEST = 200  # maximum characters of an answer or a question


class _Adviser:
    """Searches for the supporting passages that have not been read; answers once all were, or in the last turn."""

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
    """After a success its searches; after a failure those that find the answer. Uses the supporting titles and the answer."""
    task = trajectory.task
    steps = critical_steps(trajectory, _Adviser(task), _TRACKER)
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
