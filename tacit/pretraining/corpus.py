"""Text of our worlds to learn reading from: somebody acts at random, and is asked about what it sees.

What a small policy lacks is what every language model has: it cannot read a line, find a name in it and copy it. These
documents teach that and nothing else. Nobody in them knows what to do: each action is drawn at random from those that are
possible, each question is answered by the text in front of it, and all tasks come from the training split.

    put a cool plate in countertop.                 what an agent reads in a context of `contexts/`
    …
    at: countertop 1
    countertop 1: apple 3, plate 3 >
    go to drawer 4                                  either: something that could be done (not: what should be); in some
                                                    documents a note stands before it (`noted.py`)

    at? countertop 1                                or: questions, each with its answer
    where plate 3? countertop 1
    how: take plate from countertop? take plate 3 from countertop 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from tacit.contexts.history import History
from tacit.contexts.state_block import StateBlock
from tacit.core.method import Context
from tacit.core.seeds import derive
from tacit.core.types import Observation, Task
from tacit.core.world import Environment
from tacit.pretraining.noted import NOTED, noted
from tacit.pretraining.questions import Question, questions
from tacit.rollout.retelling import playing, told

PRETRAINING = "pretraining"
"""of this name are the seeds of the tasks: no run draws the same ones"""
STRAY = 0.1
"""share of actions that were possible a turn ago and may be refused now, so that refusals are read too"""
MOST_QUESTIONS = 4


@dataclass(frozen=True)
class Document:
    """`prompt` is what was read, `answer` what follows it; both are to be learned."""

    prompt: str
    answer: str
    kind: str
    """`action`, `noted action` or `questions`"""


def documents(world: Environment, episodes: int, seed: int, steps: int = 24) -> Iterator[Document]:
    """Two documents for each turn of that many random episodes: one ends with an action, one with answers."""
    rng = Random(derive(seed, PRETRAINING, world.name))
    noting = Random(derive(seed, PRETRAINING, "notes", world.name))  # of their own: whoever acts knows of no notes
    contexts = reading_contexts(world)
    for task in world.tasks("train", episodes, derive(seed, PRETRAINING, "tasks", world.name)):
        (context,) = rng.choices([c for c, _ in contexts], [weight for _, weight in contexts])
        yield from _episode(world, task, context, rng, noting, steps)


def reading_contexts(world: Environment) -> Sequence[tuple[Context, int]]:
    """What the documents are read in, with how often: mostly the constant context, also its parts, histories, and the block's
    other forms, for whoever compares them must not find that one alone was ever read."""
    wording = world.wording("terse")
    plain: list[tuple[Context, int]] = [(History(wording, turns, False, "bare"), 1) for turns in (0, 1, 2, 4)]
    if world.tracker is None:
        return plain
    whole = StateBlock(wording, world.tracker)
    parts = [StateBlock(wording, world.tracker, one_step=False), StateBlock(wording, world.tracker, block=False)]
    forms = [StateBlock(wording, tracker) for tracker in world.trackers.values() if tracker is not world.tracker]
    return [(whole, 8), *((part, 2) for part in (*parts, *forms)), *plain]


def _episode(world: Environment, task: Task, context: Context, rng: Random, noting: Random, steps: int) -> Iterator[Document]:
    live = world.make()
    met: dict[str, None] = {}
    for turn in told(context, task, playing(live, task, _AtRandom(rng), steps)):
        text, possible = turn.prompt.text, turn.observation.actions
        if turn.action in possible and noting.random() < NOTED:
            yield Document(noted(noting, turn.prompt, turn.action, possible, list(met)).text, turn.action, "noted action")
        elif turn.action in possible:
            yield Document(text, turn.action, "action")
        asked = questions(rng, text, turn.observation, world.questions)
        if asked:
            yield _asked(text, asked[:MOST_QUESTIONS])
        met |= dict.fromkeys(possible)
        if not turn.transition.observation.actions:
            break
    live.close()


class _AtRandom:
    """Does anything that is possible, and now and then what was possible a turn ago."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._bold = rng, rng.random() < 0.8
        self._before: Observation | None = None

    def act(self, observation: Observation) -> str:
        before = self._before or observation
        self._before = observation
        return random_action(self._rng, before if self._rng.random() < STRAY else observation, self._bold)


def random_action(rng: Random, observation: Observation, bold: bool) -> str:
    """Any possible action; the bold choose what kind of thing to do before which: going is most of a household's list."""
    if not bold:
        return rng.choice(observation.actions)
    by_verb: dict[str, list[str]] = {}
    for action in observation.actions:
        by_verb.setdefault(action.partition(" ")[0], []).append(action)
    return rng.choice(by_verb[rng.choice(sorted(by_verb))])


def _asked(text: str, asked: Sequence[Question]) -> Document:
    *earlier, last = asked
    lines = [text, *(f"{question}? {answer}" for question, answer in earlier), f"{last[0]}?"]
    return Document("\n".join(lines), last[1], "questions")
