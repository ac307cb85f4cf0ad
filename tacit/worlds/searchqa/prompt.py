"""Wordings: `full` for language models, with the tags of Search-R1; `terse` for models of about a million parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.core.actions import ActionFormat, Parsed, Tags
from tacit.core.types import ActionStyle, Observation, Task
from tacit.core.world import Brief, Wording
from tacit.worlds.searchqa.retrieval import REFUSED, Passage, parse_passages, sanitize
from tacit.worlds.searchqa.world import LONGEST_QUERY, MAX_STEPS, parse_action

RULES = f"""Answer the question. You can look things up before you answer, in at most {MAX_STEPS} turns altogether.
To search, write <search> your query </search>: the passages that fit best come back between <information> and </information>.
Once you know, write <answer> the answer </answer>, as short as it can be: a name, a date, yes or no. It is final."""
TERSE_PASSAGE = 160  # maximum characters of a passage in the terse wording


@dataclass(frozen=True)
class SearchTags(Tags):
    """As in the reference implementations: the first complete <search>, else <answer>; more than one tag is invalid.
    Thoughts are requested but not required."""

    kinds: tuple[str, ...] = ("search", "answer")
    keep_case: bool = True
    cjk: bool = True

    def parse(self, text: str) -> Parsed:
        """
        >>> SearchTags().parse("<think>Who?</think><search>author of Emma</search>")
        Parsed(action='search author of Emma', valid=True)
        >>> SearchTags().parse("<search>Emma</search><answer>Jane Austen</answer>")
        Parsed(action='search Emma', valid=False)
        """
        parsed = Tags(self.kinds, thinks=False, keep_case=True, cjk=True).parse(text)
        tags = text.lower()
        once = sum(tags.count(f"</{kind}>") for kind in self.kinds) == 1
        return Parsed(parsed.action, parsed.valid and once)


class FullWording(Wording):
    separator = "\n\n"
    version = "1"
    formats: Mapping[ActionStyle, ActionFormat] = {"tags": SearchTags()}

    def task(self, task: Task) -> str:
        return f"{RULES}\n\nQuestion: {sanitize(str(task.data['question']))}"

    def turn(self, number: int, observation: Observation, action: str) -> str:
        kind, said = parse_action(action)
        done = f"<{kind}> {said} </{kind}>" if kind else sanitize(action, LONGEST_QUERY)
        return "\n".join(part for part in (_last_result(observation), f"Turn {number}: {done}") if part)

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        left = MAX_STEPS - number
        turns = f"Turn {number} of {MAX_STEPS}" + (", the last: answer now." if left <= 0 else ".")
        return "\n".join(part for part in (_last_result(observation), turns) if part)

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return "Write one line: `search` and a query, or `answer` and the answer."
        return (
            "Think inside <think> </think>, then write either one <search> query </search> or, if you know enough, one "
            "<answer> answer </answer>."
        )


class TerseWording(Brief):
    """The question, then passages without numbers; `!` means that the last action was refused, `1/4` is the turn. A past turn
    keeps only its best passage."""

    version = "1"
    formats: Mapping[ActionStyle, ActionFormat] = {"tags": SearchTags()}

    def task(self, task: Task) -> str:
        return sanitize(str(task.data["question"]))

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{_brief_passages(observation, 1)} > {sanitize(action, TERSE_PASSAGE)}".strip()

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return f"{_brief_passages(observation, 3)} {number}/{MAX_STEPS} >".strip()


def brief(passage: Passage) -> str:
    """A passage in one line that begins with its subject."""
    title, text = passage
    return sanitize(text if text.lower().find(title.lower(), 0, len(title) + 8) >= 0 else f"{title}: {text}", TERSE_PASSAGE)


def _last_result(observation: Observation) -> str:
    """The result of the last action; empty for the question, which the prompt states itself."""
    text = observation.text
    return "" if text.startswith("Question: ") else text


def _brief_passages(observation: Observation, most: int) -> str:
    if observation.text.startswith(REFUSED):
        return "!"
    return " | ".join(brief(passage) for passage in parse_passages(observation.text)[:most])
