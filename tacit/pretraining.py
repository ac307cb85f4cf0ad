"""Pretraining of the tiny bases, and its corpus: random play in our worlds, and questions about the text.

A small untrained policy cannot find a name in a prompt and copy it. The corpus teaches only that, and no strategy: actions are
drawn at random from the valid ones, questions are answered by the text before them, and tasks come from the training split.

    put a cool plate in countertop.                 a prompt of an agent
    …
    at: countertop 1
    countertop 1: apple 3, plate 3 >
    go to drawer 4                                  either: a random valid action; some prompts contain a note

    at? countertop 1                                or: questions with their answers
    where plate 3? countertop 1
    how: take plate from countertop? take plate 3 from countertop 1
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tacit.core.hindsight import Lesson
from tacit.core.method import Context
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.seeds import derive
from tacit.core.types import Prompt, Task
from tacit.core.world import Environment
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import BASE_SIZES, pack_base
from tacit.prompts.history import History, StateBlock, insert_lesson
from tacit.rollout.replay import play_episode, render_turns
from tacit.runs.directory import code_version
from tacit.runs.files import write_directory
from tacit.training.demonstrations import MAX_QUESTIONS, RANDOM_STEPS, RandomAgent, join_questions, make_questions
from tacit.training.imitation import lr_factor
from tacit.worlds import get_environment

# Notes. OPID measures how a policy reacts to a skill in its prompt, and a policy that never saw a note does not react. So some
# prompts contain a note: half name the action that follows (`true`), the others another valid action (`idle`) or an invalid one
# (`impossible`). The action is drawn first, so notes teach no strategy. A note after the task, the place of episode skills,
# lists several actions without their numbers.

NOTED = 0.3  # share of documents with a note
AFTER_THE_TASK = 0.3  # share of notes after the task; the others are before the request
_KINDS = ("true", "idle", "impossible")
_NOTE_NUMBERS = re.compile(r" \d+")


def add_note(rng: Random, prompt: Prompt, taken: str, valid: Sequence[str], earlier: Sequence[str]) -> Prompt:
    """The prompt with a random note. `taken`: the next action; `valid`: the valid actions; `earlier`: valid at other turns."""
    (kind,) = rng.choices(_KINDS, (2, 1, 1))
    others = [action for action in valid if action != taken]
    invalid = [action for action in earlier if action not in valid]
    candidates = {"true": [taken], "idle": others, "impossible": invalid}[kind] or [taken]
    chosen = rng.choice(candidates)
    if rng.random() >= AFTER_THE_TASK:
        return insert_lesson(prompt, Lesson(step=chosen))
    further = rng.sample(list(earlier), min(len(earlier), rng.randint(0, 2)))
    steps = [_NOTE_NUMBERS.sub("", action) for action in (*further, chosen)]
    rng.shuffle(steps)
    return insert_lesson(prompt, Lesson(task=", ".join(steps)))


PRETRAINING = "pretraining"  # seed label: runs draw other tasks


@dataclass(frozen=True)
class Document:
    """The model learns to predict both `prompt` and `answer`."""

    prompt: str
    answer: str
    kind: str  # `action`, `noted action` or `questions`


def make_documents(world: Environment, episodes: int, seed: int, steps: int = RANDOM_STEPS) -> Iterator[Document]:
    """Up to two documents per turn of random episodes: one ends with an action, one with questions and answers."""
    rng = Random(derive(seed, PRETRAINING, world.name))
    note_rng = Random(derive(seed, PRETRAINING, "notes", world.name))  # separate, so that notes do not change the actions
    contexts = list_contexts(world)
    for task in world.tasks("train", episodes, derive(seed, PRETRAINING, "tasks", world.name)):
        (context,) = rng.choices([c for c, _ in contexts], [weight for _, weight in contexts])
        yield from _episode(world, task, context, rng, note_rng, steps)


def list_contexts(world: Environment) -> Sequence[tuple[Context, int]]:
    """(context, weight) pairs: mostly the constant context, but also its parts, histories and other forms of the state block,
    so that comparisons between them are fair."""
    wording = world.wording("terse")
    plain: list[tuple[Context, int]] = [(History(wording, turns, False, "bare"), 1) for turns in (0, 1, 2, 4)]
    if world.tracker is None:
        return plain
    whole = StateBlock(wording, world.tracker)
    parts = [StateBlock(wording, world.tracker, one_step=False), StateBlock(wording, world.tracker, block=False)]
    forms = [StateBlock(wording, tracker) for tracker in world.trackers.values() if tracker is not world.tracker]
    return [(whole, 8), *((part, 2) for part in (*parts, *forms)), *plain]


def _episode(world: Environment, task: Task, context: Context, rng: Random, note_rng: Random, steps: int) -> Iterator[Document]:
    live = world.make()
    earlier: dict[str, None] = {}
    for turn in render_turns(context, task, play_episode(live, task, RandomAgent(rng), steps)):
        text, valid = turn.prompt.text, turn.observation.actions
        if turn.action in valid and note_rng.random() < NOTED:
            yield Document(add_note(note_rng, turn.prompt, turn.action, valid, list(earlier)).text, turn.action, "noted action")
        elif turn.action in valid:
            yield Document(text, turn.action, "action")
        questions = make_questions(rng, text, turn.observation, world.questions)[:MAX_QUESTIONS]
        if questions:
            yield Document(*join_questions(text, questions), "questions")
        earlier |= dict.fromkeys(valid)
        if not turn.transition.observation.actions:
            break
    live.close()


EPISODES_PER_SHARD = 500


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as tokens, end token included. Row i is `tokens[starts[i]:starts[i + 1]]`."""

    tokens: np.ndarray
    starts: np.ndarray
    documents: Mapping[str, int]  # `<world> <kind>` -> number of documents

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, i: int) -> np.ndarray:
        return self.tokens[self.starts[i] : self.starts[i + 1]].astype(np.int64)


def sample_texts(worlds: Iterable[str], seed: int, each: int = 4000) -> list[str]:
    """Texts to train the tokenizer on: up to `each` documents and `each` example texts of every world."""
    texts: list[str] = []
    for name in worlds:
        world = get_environment(name)
        texts += [f"{d.prompt} {d.answer}" for d in islice(make_documents(world, each, derive(seed, "tokenizer")), each)]
        texts += world.texts(0)[:each]
    return texts


def make_corpus(worlds: Mapping[str, int], tokenizer: Path, end: int, limit: int, seed: int, processes: int) -> Corpus:
    """`worlds`: name -> number of episodes. Drops documents over `limit` tokens. The result does not depend on `processes`."""
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
    tokens, lengths, counted = zip(*shards, strict=True)
    counts = sum(counted, Counter[str]())
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])
    return Corpus(np.concatenate(tokens), starts, dict(sorted(counts.items())))


def iterate_batches(corpus: Corpus, rows: int, steps: int, seed: int, first: int = 0) -> Iterator[Sequence[np.ndarray]]:
    """The documents of steps `first` to `steps`, `rows` per step, in a new random order per epoch."""
    per_epoch = max(1, len(corpus) // rows)
    order: np.ndarray | None = None
    for step in range(first, steps):
        epoch, place = divmod(step, per_epoch)
        if order is None or place == 0:
            order = np.random.default_rng(derive(seed, "order", epoch)).permutation(len(corpus))
        yield [corpus.row(i) for i in order[place * rows : (place + 1) * rows]]


def _shard(
    name: str, episodes: int, seed: int, tokenizer: Path, end: int, limit: int
) -> tuple[np.ndarray, np.ndarray, Counter[str]]:
    from tokenizers import Tokenizer

    bpe = Tokenizer.from_file(str(tokenizer))
    documents = list(make_documents(get_environment(name), episodes, seed))
    prompts = bpe.encode_batch_fast([d.prompt for d in documents], add_special_tokens=False)
    answers = bpe.encode_batch_fast([d.answer for d in documents], add_special_tokens=False)
    rows: list[list[int]] = []
    counts = Counter[str]()
    for document, prompt, answer in zip(documents, prompts, answers, strict=True):
        row = [*prompt.ids, *answer.ids, end]
        if len(row) <= limit:
            rows.append(row)
            counts[f"{name} {document.kind}"] += 1
    flat = np.fromiter((token for row in rows for token in row), np.uint16)
    return flat, np.array([len(row) for row in rows], np.int64), counts


# Pretraining: L = −E[log π(token | earlier tokens of the document)].


@dataclass(frozen=True)
class PretrainingSettings:
    steps: int = 6000  # optimizer steps
    rows: int = 512  # documents per step
    lr: float = 3e-3  # peak learning rate; warm-up then cosine to zero
    warmup: float = 0.03  # share of the steps spent warming up
    seed: int = 0


def pretrain(
    learn: Callable[[Sequence[np.ndarray], float], Any],
    corpus: Corpus,
    settings: PretrainingSettings,
    report: Callable[[int, Any], None],
) -> None:
    """`learn(documents, lr)` takes one optimizer step and returns its loss; `report(step, loss)` is called after each step."""
    for step, rows in enumerate(iterate_batches(corpus, settings.rows, settings.steps, settings.seed)):
        report(step + 1, learn(rows, settings.lr * lr_factor(step, settings.steps, settings.warmup)))


STRIDE = 8  # use every n-th question, since those of one episode are similar


def measure_reading(policy: Policy, worlds: Sequence[Environment], seed: int, each: int = 400) -> Mapping[str, float]:
    """`<world> questions` -> share of exact greedy answers, on episodes that are not in the corpus."""
    right: dict[str, list[bool]] = defaultdict(list)
    for world in worlds:
        all_made = (d for d in make_documents(world, each, derive(seed, "reading")) if d.kind == "questions")
        sampled = islice(all_made, 0, STRIDE * each, STRIDE)
        encoded = [(d, policy.encode_prompt(d.prompt)) for d in sampled]
        fitting = [(d, prompt) for d, prompt in encoded if len(prompt) + 40 < policy.context_limit]
        answers = policy.sample([Request(prompt) for _, prompt in fitting], Sampling(temperature=0.0, max_tokens=40))
        # `how` questions can have several right answers, so they are not scored.
        for (document, _), answer in zip(fitting, answers, strict=True):
            if not document.prompt.rpartition("\n")[2].startswith("how"):
                right[f"{world.name} questions"].append(answer.text == document.answer)
    return {name: sum(grades) / len(grades) for name, grades in right.items()}


EPISODES = {
    "alfworld": 40_000,
    "cooking": 8_000,
    "countdown": 8_000,
    "textcraft": 6_000,
    "sokoban": 6_000,
    "webshop": 6_000,
    "searchqa": 30_000,
}
"""random episodes per world in the corpus; up to 4 turns in Search QA and 24 in the others"""
REPORTS = 20  # loss reports per pretraining


def make_base(
    destination: Path,
    size: str,
    share: float,
    processes: int,
    settings: PretrainingSettings,
    engine: EngineSettings,
    say: Callable[[str], None],
) -> dict[str, float]:
    """Make a base model of `size` (BASE_SIZES): train a tokenizer, generate a `share` of the corpus, pretrain, and save it in
    `destination`. Returns the scores of `measure_reading`."""
    from tacit.engines.local.policy import load_policy
    from tacit.engines.local.update import PretrainingTrainer
    from tacit.engines.models.tiny import tiny_checkpoint

    began = time.monotonic()
    episodes = {name: max(1, round(count * share)) for name, count in EPISODES.items()}
    counts = ", ".join(f"{count:,} of {name}" for name, count in episodes.items())
    say(f"making a tokenizer and a corpus from random episodes: {counts}")
    blank = tiny_checkpoint(sample_texts(episodes, settings.seed), BASE_SIZES[size], settings.seed)
    policy = load_policy(str(blank), engine, settings.seed)
    end, limit = policy.engine.codec.end, policy.context_limit
    corpus = make_corpus(episodes, blank / "tokenizer.json", end, limit, settings.seed, processes)
    say(f"corpus: {len(corpus):,} documents, {len(corpus.tokens):,} tokens, {time.monotonic() - began:.0f} s")

    def report(step: int, loss: Any) -> None:
        if step % max(1, settings.steps // REPORTS) == 0:
            say(f"step {step}: loss {float(loss):.3f}, {time.monotonic() - began:.0f} s")

    pretrain(PretrainingTrainer(policy.engine.model.hf, policy.engine.codec.pad).step, corpus, settings, report)
    policy.engine.weights_changed(policy.name)
    say("measuring reading: questions about new episodes")
    reads = dict(measure_reading(policy, [get_environment(name) for name in episodes], settings.seed))
    about = {
        "name": size,
        "command": f"tacit prepare base DEST --size {size} --steps {settings.steps} --rows {settings.rows} --share {share:g}",
        "code": code_version(),
        "sizes": asdict(BASE_SIZES[size]),
        "settings": asdict(settings),
        "episodes": episodes,
        "documents": corpus.documents,
        "tokens": len(corpus.tokens),
        "tokens_seen": round(settings.steps * min(settings.rows, len(corpus)) * len(corpus.tokens) / len(corpus)),
        "reads": {name: round(right, 4) for name, right in reads.items()},
        "seconds": round(time.monotonic() - began),
    }
    with TemporaryDirectory() as place:
        policy.save(Path(place) / "trained", optimizer=False)
        checkpoint = next(Path(place).glob("**/config.json")).parent
        write_directory(destination, lambda path: pack_base(checkpoint, path, about))
    return reads
