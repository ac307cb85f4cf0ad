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

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet
from tacit.environments.searchqa.answers import f1, normalised
from tacit.environments.searchqa.observed import read
from tacit.environments.searchqa.retrieval import words
from tacit.environments.searchqa.world import parse_action

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
            yield f"ANSWER-{_answer(said, question, seen)}"


def _query(said: str, question: str, seen: str, asked: set[str]) -> str:
    if normalised(said) in asked:
        return "AGAIN"
    if f1(said, [question]) >= 0.8:
        return "QUESTION"
    own = set(words(said)) - set(words(question))
    if not own:
        return "NAMED"
    return "FOUND" if own <= set(words(seen)) else "OWN"


def _answer(said: str, question: str, seen: str) -> str:
    answer = f" {normalised(said)} "
    if answer.strip() in ("yes", "no"):
        return "YES_NO"
    if answer in f" {normalised(question)} ":
        return "NAMED"
    return "FOUND" if answer in f" {normalised(seen)} " else "OWN"


ALPHABET = Alphabet(SKILLS, project)
