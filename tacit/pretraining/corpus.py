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

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np

from tacit.core.hindsight import Lesson
from tacit.core.method import Context
from tacit.core.seeds import derive
from tacit.core.types import Observation, Prompt, Task
from tacit.core.world import Environment
from tacit.prompts.conversation import teach
from tacit.prompts.history import History
from tacit.prompts.state_block import StateBlock
from tacit.rollout.replay import play_episode, render_turns
from tacit.worlds import get_environment

# Questions that the text in front of the reader answers. They know nothing of any world but its punctuation.
#
# at? countertop 1                                   what a field of the state block says
# first unchecked? cabinet 3                         its first entry, ranges (`cabinet 3-7`) read out
# next unchecked after cabinet 3? cabinet 4
# drawer 2 in checked? no
# where plate 3? countertop 1                        `place: thing, thing` in what is seen now
# how: take plate from countertop? take plate 3 …    a possible action, told without its numbers
# can go to drawer 9? yes

Question = tuple[str, str]
Asker = Callable[[Random, Observation], Sequence[Question]]
"""what a world asks besides, e.g. Countdown: what 12 + 7 is"""

_FIELD = re.compile(r"^([a-z][a-z ]*): (.+)$", re.MULTILINE)
_PLACE = re.compile(r"(?:^|[;|\n] ?)([a-z]+(?: \d+)?)(?: open)?: ([^;|>\n]+)")
_NOTHING = "nothing"
"""what is written where nothing is"""
_NUMBERS = re.compile(r" ?\d+")


def questions(rng: Random, text: str, observation: Observation, more: Asker | None) -> list[Question]:
    """Some questions about what is read and what could be done, in random order."""
    fields = dict(_FIELD.findall(text))
    asked: list[Question] = []
    if fields:
        asked += _about_fields(rng, fields)
    asked += _about_places(rng, text.rpartition("\n")[2])
    asked += _about_actions(rng, observation.actions)
    if more is not None:
        asked += more(rng, observation)
    rng.shuffle(asked)
    return asked


def entries(value: str) -> list[str]:
    """`drawer 1-3 5, bed 1` -> drawer 1, drawer 2, drawer 3, drawer 5, bed 1"""
    if "(" in value:  # a command, whose commas separate nothing
        return [value]
    found = []
    for part in value.split(", "):
        kind, *numbers = re.split(r" (?=\d)", part)
        for number in numbers:
            first, _, last = number.partition("-")
            if not first.isdigit() or not (last or first).isdigit():
                return [value]
            found += [f"{kind} {n}" for n in range(int(first), int(last or first) + 1)]
        if not numbers:
            found.append(kind)
    return found


def _about_fields(rng: Random, fields: dict[str, str]) -> list[Question]:
    label = rng.choice(sorted(fields))
    asked = [(label, fields[label])]
    lists = {name: found for name, value in fields.items() if len(found := entries(value)) > 1}
    if not lists:
        return asked
    name = rng.choice(sorted(lists))
    found = lists[name]
    spot = rng.randrange(len(found) - 1)
    asked.append((f"first {name}", found[0]))
    asked.append((f"next {name} after {found[spot]}", found[spot + 1]))
    other = rng.choice(sorted(lists))
    item = rng.choice(lists[other])
    asked.append((f"{item} in {name}", "yes" if item in found else "no"))
    return asked


def _about_places(rng: Random, now: str) -> list[Question]:
    """Of what lies where, by the last line: what is seen now."""
    listed = [(place, thing) for place, things in _PLACE.findall(now) for thing in things.strip().split(", ")]
    seen = [(place, thing) for place, thing in listed if thing != _NOTHING]
    if not seen:
        return []
    place, thing = rng.choice(seen)
    return [(f"where {thing}", place)] if sum(other == thing for _, other in seen) == 1 else []


def _about_actions(rng: Random, actions: Sequence[str]) -> list[Question]:
    if not actions:
        return []
    action = rng.choice(actions)
    described = _NUMBERS.sub("", action)
    asked = [(f"can {action}", "yes")]
    if described != action:
        asked.append((f"how: {described}", action))
        # The same command with another number: is it among the possible ones?
        changed = _NUMBERS.sub(
            lambda found: f" {rng.randint(1, 9)}" if found.group().startswith(" ") else found.group(), action
        )
        asked[0] = (f"can {changed}", "yes" if changed in actions else "no")
    return asked


# Notes in the corpus, so that a small policy can read one: true, idle and impossible ones, never a good one.
#
# What OPID measures is how a policy reacts to a skill in its prompt, and a policy that never saw a note does not react. Here
# somebody acts at random, and now and then a note stands in the prompt:
#
#     true         it names what is then done                                  half of the notes
#     idle         it names something else that could be done                  a quarter
#     impossible   it names something that cannot be done here                 a quarter
#
# The random choice comes first and the note follows it, so no note says what *should* be done, and what is learned is only that
# notes are about actions and may be wrong. In the place of an episode's skill, after the task, several steps are told, without
# their numbers.

NOTED = 0.3
"""share of documents with a note"""
AFTER_THE_TASK = 0.3
"""share of notes that stand there, as an episode's skill does; the others stand before the request"""
_KINDS = ("true", "idle", "impossible")
_NOTE_NUMBERS = re.compile(r" \d+")


def noted(rng: Random, prompt: Prompt, taken: str, possible: Sequence[str], met: Sequence[str]) -> Prompt:
    """`taken` is what is done next, `met` what could be done at some other time."""
    (kind,) = rng.choices(_KINDS, (2, 1, 1))
    others = [action for action in possible if action != taken]
    elsewhere = [action for action in met if action not in possible]
    named = {"true": [taken], "idle": others, "impossible": elsewhere}[kind] or [taken]
    chosen = rng.choice(named)
    if rng.random() >= AFTER_THE_TASK:
        return teach(prompt, Lesson(step=chosen))
    beside = rng.sample(list(met), min(len(met), rng.randint(0, 2)))
    steps = [_NOTE_NUMBERS.sub("", action) for action in (*beside, chosen)]
    rng.shuffle(steps)
    return teach(prompt, Lesson(task=", ".join(steps)))


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
    for turn in render_turns(context, task, play_episode(live, task, _AtRandom(rng), steps)):
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


# The corpus as tokens: made in parallel, kept as one long array of small integers.

EPISODES_PER_SHARD = 500


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as tokens, end token included. Row i is `tokens[starts[i]:starts[i + 1]]`."""

    tokens: np.ndarray
    starts: np.ndarray
    documents: Mapping[str, int]
    """how many, by world and kind"""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, i: int) -> np.ndarray:
        return self.tokens[self.starts[i] : self.starts[i + 1]].astype(np.int64)


def sample_texts(worlds: Iterable[str], seed: int, each: int = 4000) -> list[str]:
    """Documents to train the tokenizer on, and every world's own example texts."""
    texts: list[str] = []
    for name in worlds:
        world = get_environment(name)
        texts += [f"{d.prompt} {d.answer}" for d in islice(documents(world, each, derive(seed, "tokenizer")), each)]
        texts += list(world.example_texts(0))[:each] if world.example_texts else []
    return texts


def make_corpus(worlds: Mapping[str, int], tokenizer: Path, end: int, limit: int, seed: int, processes: int) -> Corpus:
    """`worlds` says how many episodes of each; documents over `limit` tokens are left out. The same for any `processes`."""
    plans = [
        (name, min(EPISODES_PER_SHARD, episodes - first), derive(seed, "shard", first), tokenizer, end, limit)
        for name, episodes in worlds.items()
        for first in range(0, episodes, EPISODES_PER_SHARD)
    ]
    if processes > 1:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            shards = list(pool.map(_shard, *zip(*plans, strict=True)))
    else:
        shards = [_shard(*plan) for plan in plans]
    lengths = np.concatenate([lengths for _, lengths, _ in shards])
    counts = Counter[str]()
    for _, _, counted in shards:
        counts.update(counted)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Corpus(np.concatenate([tokens for tokens, _, _ in shards]), starts, dict(sorted(counts.items())))


def batches(corpus: Corpus, rows: int, steps: int, seed: int, first: int = 0) -> Iterator[Sequence[np.ndarray]]:
    """`rows` documents a step, each once before any comes again."""
    per_pass = max(1, len(corpus) // rows)
    order: np.ndarray | None = None
    for step in range(first, steps):
        turn, place = divmod(step, per_pass)
        if order is None or place == 0:
            order = np.random.default_rng(derive(seed, "order", turn)).permutation(len(corpus))
        yield [corpus.row(i) for i in order[place * rows : (place + 1) * rows]]


def _shard(
    name: str, episodes: int, seed: int, tokenizer: Path, end: int, limit: int
) -> tuple[np.ndarray, np.ndarray, Counter[str]]:
    from tokenizers import Tokenizer

    bpe = Tokenizer.from_file(str(tokenizer))
    made = list(documents(get_environment(name), episodes, seed))
    prompts = bpe.encode_batch_fast([d.prompt for d in made], add_special_tokens=False)
    answers = bpe.encode_batch_fast([d.answer for d in made], add_special_tokens=False)
    rows: list[list[int]] = []
    counts = Counter[str]()
    for document, prompt, answer in zip(made, prompts, answers, strict=True):
        row = [*prompt.ids, *answer.ids, end]
        if len(row) <= limit:
            rows.append(row)
            counts[f"{name} {document.kind}"] += 1
    flat = np.fromiter((token for row in rows for token in row), np.uint16)
    return flat, np.array([len(row) for row in rows], np.int64), counts
