"""Nine atomic skills: what a query or an answer was made of. Not from a paper; in the spirit of ReuseRL's alphabets, whose
skills say what a step did and not to which thing.

    SEARCH-QUESTION   the question itself, or nearly                       (F1 of their words 0.8 or more)
    SEARCH-NAMED      words of the question only: something it names
    SEARCH-FOUND      a word that the question does not have, from a passage that was read: the next link of a chain
    SEARCH-OWN        a word from neither
    SEARCH-AGAIN      a query that was asked before
    ANSWER-FOUND      stands in a passage that was read
    ANSWER-NAMED      stands in the question: one of two that are compared
    ANSWER-YES_NO     yes or no
    ANSWER-OWN        from nowhere
"""

from __future__ import annotations

from collections.abc import Iterator

from tacit.core.hindsight import Skills, critical_steps
from tacit.core.types import Observation, StopReason, Task, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.searchqa.retrieval import f1, made_plain, normalised, plain, read, words
from tacit.worlds.searchqa.tracker import SearchTracker
from tacit.worlds.searchqa.world import MAX_STEPS, WRONG, parse_action

SKILLS = (
    *(f"SEARCH-{made}" for made in ("QUESTION", "NAMED", "FOUND", "OWN", "AGAIN")),
    *(f"ANSWER-{made}" for made in ("FOUND", "NAMED", "YES_NO", "OWN")),
)


def project(trajectory: Trajectory) -> Iterator[str]:
    question = str(trajectory.task.data["question"])
    seen, asked = "", set[str]()
    for step in trajectory.steps:
        seen = " ".join([seen, *(f"{title} {text}" for title, text in read(step.observation.text))])
        kind, said = parse_action(step.action)
        if kind == "search":
            yield f"SEARCH-{_query(said, question, seen, asked)}"
            asked.add(normalised(said))
        elif kind == "answer":
            yield f"ANSWER-{_answer_skill(said, question, seen)}"


def _query(said: str, question: str, seen: str, asked: set[str]) -> str:
    if normalised(said) in asked:
        return "AGAIN"
    if f1(said, [question]) >= 0.8:
        return "QUESTION"
    own = set(words(said)) - set(words(question))
    if not own:
        return "NAMED"
    return "FOUND" if own <= set(words(seen)) else "OWN"


def _answer_skill(said: str, question: str, seen: str) -> str:
    answer = f" {normalised(said)} "
    if answer.strip() in ("yes", "no"):
        return "YES_NO"
    if answer in f" {normalised(question)} ":
        return "NAMED"
    return "FOUND" if answer in f" {normalised(seen)} " else "OWN"


ALPHABET = Alphabet(SKILLS, project)


# Skills of Search QA by hand, for methods that retrieve one: how to look things up, never what the answer is.

HANDBOOK = {
    "": (
        "search for a name in the question, not for the whole question; read what was found before searching again; keep the "
        "last turn for the answer, and answer with the name or number alone"
    ),
    "bridge": "search for the one who is named first, then for whoever that passage names, until a passage says what is asked",
    "comparison": "search for each of the two by name, one after the other, and compare what their passages say",
}


# Why a question was not answered.
#
# no_answer    out of turns
# no_search    answered at once, and wrong
# not_found    wrong, and no passage that was read has the answer
# misread      wrong, though it stood there


def failure(trajectory: Trajectory) -> str:
    """The label of a failed trajectory. `yes` and `no` stand nowhere: such an answer was there once all its passages were."""
    if trajectory.stop is StopReason.STEP_LIMIT:
        return "no_answer"
    labels = {trajectory.detail, trajectory.steps[-1].label if trajectory.steps else ""}
    if WRONG not in labels:
        return str(trajectory.stop)
    passages = [passage for step in trajectory.steps for passage in read(step.observation.text)]
    if not passages:
        return "no_search"
    data = trajectory.task.data
    answers = [normalised(str(answer)) for answer in data["answers"]]
    if set(answers) <= {"yes", "no"}:
        read_of = {passage.title for passage in passages}
        return "misread" if read_of >= set(data.get("titles", ())) else "not_found"
    text = f" {normalised(' '.join(f'{title} {text}' for title, text in passages))} "
    return "misread" if any(f" {answer} " in text for answer in answers) else "not_found"


# What a question that was answered or not teaches, by rule: the searches that found it, or those that would have.
#
# The rules know the passages that the question hangs on and the answer: hindsight is allowed to know more than the agent did.
# At a step it is told what to do after what had been read by then.

_TRACKER = SearchTracker()
_LONGEST = 200
"""characters of an answer or a question that are told"""


class _Companion:
    """Searches for what the question hangs on and has not been read yet; answers when all has, or the turns run out."""

    def __init__(self, task: Task) -> None:
        self._left, self._turn = _queries(task), 0
        self._answer = _answer(task)

    def act(self, observation: Observation) -> str:
        seen = {passage.title for passage in read(observation.text)}
        self._left = [title for title in self._left if title not in seen]
        self._turn += 1
        search = self._left and self._turn < MAX_STEPS
        return f"search {self._left[0]}" if search else f"answer {self._answer}"


def hindsight(trajectory: Trajectory) -> Skills:
    task = trajectory.task
    steps = critical_steps(trajectory, _Companion(task), _TRACKER)
    if trajectory.success:
        done = dict.fromkeys(plain(step.action, _LONGEST) for step in trajectory.steps if step.effective)
        return Skills("; ".join(done), steps, f"Answered in {len(trajectory)} turns.")
    label, answer = failure(trajectory), _answer(task)
    way = f"{'; '.join(f'search {title}' for title in _queries(task))}; answer {answer}"
    told = f"it stood in what was read: answer {answer}" if label == "misread" else way
    if label == "no_answer":
        steps = {**steps, len(trajectory) - 1: f"answer {answer}"}
        told = f"answer before the turns run out: {way}"
    return Skills(told, steps, f"Failed: {label}.")


def _queries(task: Task) -> list[str]:
    return [made_plain(str(title), "").title for title in task.data.get("titles", ())] or [plain(task.goal, _LONGEST)]


def _answer(task: Task) -> str:
    return plain(str(task.data["answers"][0]), _LONGEST)
