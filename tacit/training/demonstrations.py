"""Imitation samples (prompt tokens, action tokens), one per turn: from expert episodes, and from notes and bank entries."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from tacit.companions.experience.companion import GUIDED
from tacit.companions.experience.extractor import render_critic_prompt, render_distill_prompt
from tacit.core.errors import TacitError, describe_error
from tacit.core.hindsight import Lesson
from tacit.core.method import Context
from tacit.core.progress import pluralize
from tacit.core.protocols import Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import PLAIN, Condition, Observation, Prompt, Skills, Task, Trajectory
from tacit.core.world import Adviser, Environment, Expert, World
from tacit.prompts.history import insert_lesson
from tacit.rollout.encoding import encode_action, fit_prompt
from tacit.rollout.replay import Turn, build_trajectory, iterate_trajectory, play_episode, render_turns
from tacit.training.settings import SupervisedSettings

MAX_BROKEN = 8
"""stop if this many episodes fail and none succeeds, since each may take a full world timeout"""
Sample = tuple[np.ndarray, np.ndarray]
"""(prompt tokens, action tokens)"""


@dataclass(frozen=True)
class Demonstrations:
    prompts: list[np.ndarray]
    completions: list[np.ndarray]
    episodes: int
    won: int
    broken: int = 0
    """episodes in which the world or the expert raised; dropped"""
    too_long: int = 0
    """turns of won episodes whose prompt exceeds the model's context; dropped"""

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def of(cls, samples: Sequence[Sample | None], episodes: int, won: int, broken: int = 0) -> Demonstrations:
        """From samples; None stands for one that is too long."""
        fitting = [sample for sample in samples if sample is not None]
        prompts, completions = [prompt for prompt, _ in fitting], [completion for _, completion in fitting]
        return cls(prompts, completions, episodes, won, broken, len(samples) - len(fitting))

    @classmethod
    def joined(cls, parts: Sequence[Demonstrations]) -> Demonstrations:
        counts = {name: sum(getattr(part, name) for part in parts) for name in ("episodes", "won", "broken", "too_long")}
        return cls([p for part in parts for p in part.prompts], [c for part in parts for c in part.completions], **counts)

    def __str__(self) -> str:
        broke = f", {self.broken} broke" if self.broken else ""
        dropped = f"; dropped {pluralize(self.too_long, 'turn')} longer than the model's context" if self.too_long else ""
        return f"{pluralize(len(self), 'turn')} of {pluralize(self.won, 'won episode')} (of {self.episodes}{broke}){dropped}"


def demonstrate(
    world: Environment,
    tasks: Sequence[Task],
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    expert: str = "",
    noise: float = 0.0,
    seed: int = 0,
    renamed: int = 0,
) -> Demonstrations:
    """Play each task with the expert and keep the turns of won episodes.

    With probability `noise` a turn takes a random action that is admissible now or was one turn ago. Random actions are not
    imitated, but the expert's recovery is. `renamed`: further copies of each turn with other names.
    """
    make_expert = world.expert(expert or None)
    turns: list[Turn] = []
    played = won = 0
    broken: list[str] = []
    live = world.make()
    for task in tasks:
        if played == len(broken) == MAX_BROKEN:
            break
        played += 1
        rng = random.Random(derive(seed, "demonstration", task.id))
        try:
            success, episode = play_expert(live, NoisyExpert(make_expert(task), noise, rng), task, context, max_steps)
        except TacitError:
            raise
        except (Exception, SystemExit) as error:
            broken.append(f"{describe_error(error)}, in task {task.id!r}")
            live = world.make()
            continue
        if success:
            won += 1
            turns += episode
    live.close()
    if not won:
        remedy = "Choose another expert, or train without imitation (sft.steps = 0)."
        if len(broken) == played:
            remedy = "Fix the world or its expert, then run the command again."
        broke = f"{len(broken)} broke; the first: {broken[0]}" if broken else "0 broke"
        raise TacitError(
            f"the expert of world {world.name!r} won none of {played} tasks within {max_steps} steps ({broke}), so there is "
            f"nothing to imitate. {remedy}"
        )
    rng, original = random.Random(derive(seed, "renamed")), tuple(turns)
    for _ in range(renamed):
        assert world.names is not None  # checked before the model was loaded
        turns += rename_turns(original, world.names, rng)
    samples = [make_sample(turn, context, tokenizer) for turn in turns]
    demonstrations = Demonstrations.of(samples, len(tasks), won, len(broken))
    if not len(demonstrations):
        raise TacitError(
            f"none of the {len(samples)} turns of the expert of world {world.name!r} fits in the model's context of "
            f"{tokenizer.context_limit} tokens. Choose a model with a longer context, or a shorter prompt (wording, history)."
        )
    return demonstrations


class NoisyExpert:
    """An expert that, with probability `noise`, takes a random action that is admissible now or was one turn ago."""

    def __init__(self, expert: Expert, noise: float, rng: random.Random) -> None:
        self._expert, self._noise, self._rng = expert, noise, rng
        self._before: Observation | None = None
        self.acted = True
        """whether the last action was the expert's, not random"""
        self.intended: list[str] = []
        """the expert's action at every turn"""

    def act(self, observation: Observation) -> str:
        action = self._expert.act(observation)
        self.intended.append(action)
        admissible = (self._before or observation).actions + observation.actions
        self._before = observation
        self.acted = not (admissible and self._rng.random() < self._noise)
        if not self.acted:
            action = self._rng.choice(admissible)
            if isinstance(self._expert, Adviser):
                self._expert.happened(action)
        return action


def play_expert(
    live: World,
    expert: NoisyExpert,
    task: Task,
    context: Context,
    max_steps: int,
    condition: Condition = PLAIN,
) -> tuple[bool, list[Turn]]:
    """Play one episode. Returns (won, the expert's turns)."""
    turns: list[Turn] = []
    won = False
    for turn in render_turns(context, task, play_episode(live, task, expert, max_steps), condition):
        won = bool(turn.transition.success)
        if expert.acted:
            turns.append(turn)
    return won, turns


def make_sample(turn: Turn, context: Context, tokenizer: Tokenizer) -> Sample | None:
    """The sample of a turn; None if it exceeds the model's context."""
    completion = encode_action(turn.prompt, turn.action, context.format, tokenizer)
    _, tokens, fits = fit_prompt(turn.prompt, tokenizer, len(completion))
    return (tokens, completion) if fits else None


def ask_questions(
    world: Environment, tasks: Sequence[Task], context: Context, tokenizer: Tokenizer, episodes: int, seed: int
) -> Demonstrations:
    """Questions and answers about every turn of random episodes; cycles through the tasks. They keep a small base from
    forgetting how to read while it imitates a few episodes."""
    live = world.make()
    samples: list[Sample | None] = []
    for i in range(episodes):
        rng = Random(derive(seed, "questions", i))
        episode = play_episode(live, tasks[i % len(tasks)], RandomAgent(rng), RANDOM_STEPS)
        for turn in render_turns(context, tasks[i % len(tasks)], episode):
            questions = make_questions(rng, turn.prompt.text, turn.observation, world.questions)[:MAX_QUESTIONS]
            if questions:
                text, answer = join_questions(turn.prompt.text, questions)
                prompt, completion = tokenizer.encode_prompt(text), tokenizer.encode_completion(answer)
                samples.append((prompt, completion) if len(prompt) + len(completion) <= tokenizer.context_limit else None)
            if not turn.transition.observation.actions:
                break
    live.close()
    return Demonstrations.of(samples, episodes, episodes)


# Demonstrations of using notes and writing entries, for policies too small to do so without examples. The notes are rule-based
# hindsight skills.
#
#     noted       an expert's episode with a note in the prompt, and a verdict on the note (accept, or reject a wrong one)
#     step_notes  the critical steps of an episode, each with its note before the request, and the expert's action
#     entries     an episode in the extractor's prompt, and the entry to write
#
# A share `mismatched` of notes and entries comes from another episode and is mostly wrong, while the action stays the expert's.
# So the policy learns to trust notes only partly, and RL can still improve their use.

ANSWER_TOKENS = 64
"""maximum tokens of a tiny extractor's entry"""
FAILING_NOISE = 0.9
"""noise of half of the episodes, so that they fail: extractors mostly read failures"""
EXISTING_ENTRY_SHARE = 0.5
"""share of extractor prompts with an existing entry; half of these update it"""


@dataclass(frozen=True)
class NoteWriter:
    world: Environment
    live: World
    make_expert: Callable[[Task], Expert]
    tasks: Sequence[Task]
    max_steps: int
    noise: float
    mismatched: float

    def note(self, task: Task, rng: Random) -> tuple[str, bool]:
        """(note from the task's expert episode, True), or (note from another task's episode, False)."""
        wrong = rng.random() < self.mismatched
        text = self._skill_text(self._episode(rng.choice(self.tasks) if wrong else task, 0.0, rng))
        return text, not wrong

    def entry(self, task: Task, rng: Random, tokenizer: Tokenizer) -> Sample | None:
        """An extractor's prompt for an episode, and the entry to write; None if it exceeds the model's context."""
        trajectory = self._episode(task, rng.choice((self.noise, FAILING_NOISE)), rng)
        text = self._skill_text(trajectory)
        if text and rng.random() < self.mismatched:
            text = self._skill_text(self._episode(rng.choice(self.tasks), self.noise, rng)) or text
        note = self.note(task, rng)[0] if rng.random() < EXISTING_ENTRY_SHARE else ""
        word = "update" if note and rng.random() < 0.5 else "add"
        room = 3 * max(64, tokenizer.context_limit - ANSWER_TOKENS)
        prompt = tokenizer.encode_prompt(render_distill_prompt(trajectory, note, "terse", room))
        completion = tokenizer.encode_completion(f"{word}: {text}" if text else "return")
        return (prompt, completion) if len(prompt) + len(completion) <= tokenizer.context_limit else None

    def critical_steps(self, task: Task, rng: Random, context: Context, tokenizer: Tokenizer) -> list[Sample | None]:
        """The critical steps of an episode: each prompt with the step's note, and the expert's action."""
        noise = rng.choice((self.noise, FAILING_NOISE))
        expert = NoisyExpert(self.make_expert(task), noise, rng)
        trajectory = self._episode(task, noise, rng, expert)
        notes = self._skills(trajectory).steps
        other = self._skills(self._episode(rng.choice(self.tasks), FAILING_NOISE, rng)).steps
        samples = []
        for t, turn in enumerate(render_turns(context, task, iterate_trajectory(trajectory))):
            if t in notes:
                mismatched = bool(other) and rng.random() < self.mismatched
                note = rng.choice(sorted(other.values())) if mismatched else notes[t]
                noted = replace(turn, prompt=insert_lesson(turn.prompt, Lesson(step=note)), action=expert.intended[t])
                samples.append(make_sample(noted, context, tokenizer))
        return samples

    def _episode(self, task: Task, noise: float, rng: Random, expert: NoisyExpert | None = None) -> Trajectory:
        expert = expert or NoisyExpert(self.make_expert(task), noise, rng)
        return build_trajectory(task, play_episode(self.live, task, expert, self.max_steps), rng.randrange(2**31))

    def _skill_text(self, trajectory: Trajectory) -> str:
        return " ".join(self._skills(trajectory).episode.split())

    def _skills(self, trajectory: Trajectory) -> Skills:
        if self.world.hindsight is None:
            raise TacitError(
                f"world {self.world.name!r} has no hindsight for notes; remove sft.noted, sft.step_notes and sft.entries."
            )
        return self.world.hindsight(trajectory)


def demonstrate_notes(
    world: Environment,
    tasks: Sequence[Task],
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    settings: SupervisedSettings,
    seed: int,
) -> Demonstrations:
    """The demonstrations of notes and entries that the settings request; cycles through the tasks."""
    live = world.make()
    writer = NoteWriter(
        world, live, world.expert(settings.expert or None), tasks, max_steps, settings.noise, settings.mismatched
    )
    samples: list[Sample | None] = []
    won = 0
    for i in range(settings.noted):
        task, rng = tasks[i % len(tasks)], Random(derive(seed, "noted", i))
        note, true = writer.note(task, rng)
        expert = NoisyExpert(writer.make_expert(task), settings.noise, rng)
        success, turns = play_expert(live, expert, task, context, max_steps, Condition(GUIDED, note))
        won += success
        samples += [make_sample(turn, context, tokenizer) for turn in turns] if success else []
        question, verdict = render_critic_prompt(task.goal, note, rng.random(), "terse"), "accept" if true else "reject"
        samples.append((tokenizer.encode_prompt(question), tokenizer.encode_completion(verdict)))
    for i in range(settings.step_notes):
        samples += writer.critical_steps(tasks[i % len(tasks)], Random(derive(seed, "step note", i)), context, tokenizer)
    for i in range(settings.entries):
        samples.append(writer.entry(tasks[i % len(tasks)], Random(derive(seed, "entry", i)), tokenizer))
    live.close()
    rest = settings.step_notes + settings.entries
    return Demonstrations.of(samples, settings.noted + rest, won + rest)


# Data augmentation for few demonstrations: replace the names in a turn, consistently in its prompt and its action.
#
#     seen: mug 2 at desk 1  >  take mug 2 from desk 1            as demonstrated
#     seen: pen 5 at desk 3  >  take pen 5 from desk 3            renamed
#
# With both versions, a policy must copy names from the prompt. With only the first, it can memorize `mug 2` instead.

EXCHANGED_SHARE = 0.3
"""share of kinds replaced by another kind; the others stay, since some rules depend on the kind"""
MAX_SHIFT = 12
"""largest shift of the numbers of a kind"""
_WORD = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Renaming:
    pattern: re.Pattern[str]
    """group 1 is a kind, group 2 its numbers: `drawer 1-3 5`"""
    kinds: Mapping[str, str]
    """kind -> new kind; new kinds are distinct"""
    shifts: Mapping[str, int]
    """kind -> shift added to its numbers, so that ranges stay ranges"""

    @classmethod
    def draw(cls, pattern: re.Pattern[str], text: str, known: Sequence[str], rng: Random) -> Renaming:
        """A random renaming for `text`; new kinds are drawn from `known`."""
        words = set(_WORD.findall(text))
        exchanged = [kind for kind in known if kind in words and rng.random() < EXCHANGED_SHARE]
        free = [kind for kind in known if kind not in words or kind in exchanged]
        kinds = dict(zip(exchanged, rng.sample(free, len(exchanged)), strict=True))
        numbers: dict[str, list[int]] = {}
        for match in pattern.finditer(text):
            numbers.setdefault(match[1], []).extend(map(int, _NUMBER.findall(match[2])))
        shifts = {kind: rng.randint(1 - min(values), MAX_SHIFT) for kind, values in numbers.items()}
        return cls(pattern, kinds, shifts)

    def apply(self, text: str) -> str:
        shifted = self.pattern.sub(self._shift, text)
        return _WORD.sub(lambda word: self.kinds.get(word[0], word[0]), shifted)

    def _shift(self, match: re.Match[str]) -> str:
        return f"{match[1]} " + _NUMBER.sub(lambda number: str(int(number[0]) + self.shifts[match[1]]), match[2])

    def apply_to(self, prompt: Prompt) -> Prompt:
        names = ("task", "now", "request", "task_note", "step_note", "now_alone")
        sections: dict[str, Any] = {name: self.apply(getattr(prompt, name)) for name in names}
        return replace(prompt, history=tuple(map(self.apply, prompt.history)), **sections)


def rename_turns(turns: Sequence[Turn], pattern: re.Pattern[str], rng: Random) -> list[Turn]:
    if any(turn.prompt.conversation is not None for turn in turns):
        raise TacitError("sft.renamed needs plain prompts, but these are conversations. Use --no-chat, or --sft.renamed 0.")
    texts = [f"{turn.prompt.text}\n{turn.action}" for turn in turns]
    known = sorted({match[1] for text in texts for match in pattern.finditer(text)})
    renamed = []
    for turn, text in zip(turns, texts, strict=True):
        renaming = Renaming.draw(pattern, text, known, rng)
        renamed.append(replace(turn, prompt=renaming.apply_to(turn.prompt), action=renaming.apply(turn.action)))
    return renamed


# Questions and answers about prompts of random play. They teach a small model to read, not to act: every answer is in the
# prompt.
#
#     put a cool plate in countertop.
#     …
#     at: countertop 1
#     countertop 1: apple 3, plate 3 >
#     at? countertop 1
#     where plate 3? countertop 1
#     how: take plate from countertop? take plate 3 from countertop 1

# Kinds of questions:
#
# at? countertop 1                                   a field of the state block
# first unchecked? cabinet 3                         the first entry of a list, ranges (`cabinet 3-7`) expanded
# next unchecked after cabinet 3? cabinet 4          the entry after another
# drawer 2 in checked? no                            whether a list has an entry
# where plate 3? countertop 1                        `place: thing, thing` in the current observation
# how: take plate from countertop? take plate 3 …    a valid action, described without its numbers
# can go to drawer 9? yes                            whether an action is valid

Question = tuple[str, str]
Asker = Callable[[Random, Observation], Sequence[Question]]  # a world's own questions, e.g. the sum of 12 and 7 in Countdown

_FIELD = re.compile(r"^([a-z][a-z ]*): (.+)$", re.MULTILINE)
_PLACE = re.compile(r"(?:^|[;|\n] ?)([a-z]+(?: \d+)?)(?: open)?: ([^;|>\n]+)")
_NOTHING = "nothing"  # stands for an empty list
_NUMBERS = re.compile(r" ?\d+")


def make_questions(rng: Random, text: str, observation: Observation, more: Asker | None) -> list[Question]:
    """Questions about the text and the valid actions, in random order. `more`: further questions of the world."""
    fields = dict(_FIELD.findall(text))
    questions = _about_fields(rng, fields) if fields else []
    questions += _about_places(rng, text.rpartition("\n")[2]) + _about_actions(rng, observation.actions)
    if more is not None:
        questions += more(rng, observation)
    rng.shuffle(questions)
    return questions


def expand_entries(value: str) -> list[str]:
    """`drawer 1-3 5, bed 1` -> drawer 1, drawer 2, drawer 3, drawer 5, bed 1"""
    if "(" in value:  # a command, whose commas do not separate entries
        return [value]
    names = []
    for part in value.split(", "):
        kind, *numbers = re.split(r" (?=\d)", part)
        for number in numbers:
            first, _, last = number.partition("-")
            if not first.isdigit() or not (last or first).isdigit():
                return [value]
            names += [f"{kind} {n}" for n in range(int(first), int(last or first) + 1)]
        if not numbers:
            names.append(kind)
    return names


def _about_fields(rng: Random, fields: dict[str, str]) -> list[Question]:
    label = rng.choice(sorted(fields))
    questions = [(label, fields[label])]
    lists = {name: entries for name, value in fields.items() if len(entries := expand_entries(value)) > 1}
    if not lists:
        return questions
    name = rng.choice(sorted(lists))
    entries = lists[name]
    i = rng.randrange(len(entries) - 1)
    questions += [(f"first {name}", entries[0]), (f"next {name} after {entries[i]}", entries[i + 1])]
    item = rng.choice(lists[rng.choice(sorted(lists))])
    return [*questions, (f"{item} in {name}", "yes" if item in entries else "no")]


def _about_places(rng: Random, now: str) -> list[Question]:
    """Where a thing is, according to the last line of the prompt; empty if there is none or it is in several places."""
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
    questions = [(f"can {action}", "yes")]
    if described != action:
        questions.append((f"how: {described}", action))
        # The same command with another number: is it valid?
        changed = _NUMBERS.sub(
            lambda match: f" {rng.randint(1, 9)}" if match.group().startswith(" ") else match.group(), action
        )
        questions[0] = (f"can {changed}", "yes" if changed in actions else "no")
    return questions


STALE_ACTION_SHARE = 0.1  # share of actions drawn from those valid one turn ago, so that refusals occur
MAX_QUESTIONS = 4  # per prompt
RANDOM_STEPS = 24  # maximum turns of an episode of random play


def join_questions(text: str, questions: Sequence[Question]) -> tuple[str, str]:
    """(the prompt with all questions and all answers but the last, the last answer)"""
    *earlier, (last, final_answer) = questions
    lines = [text, *(f"{question}? {answer}" for question, answer in earlier), f"{last}?"]
    return "\n".join(lines), final_answer


class RandomAgent:
    """Takes random valid actions, sometimes one that was valid one turn ago."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._bold = rng, rng.random() < 0.8
        self._before: Observation | None = None

    def act(self, observation: Observation) -> str:
        before = self._before or observation
        self._before = observation
        return random_action(self._rng, before if self._rng.random() < STALE_ACTION_SHARE else observation, self._bold)


def random_action(rng: Random, observation: Observation, bold: bool) -> str:
    """A random valid action. With `bold`, the verb is drawn first, because most valid actions of a household are `go`."""
    if not observation.actions:
        raise TacitError("sft.questions needs a world that lists its admissible actions; use --sft.questions 0.")
    if not bold:
        return rng.choice(observation.actions)
    by_verb: dict[str, list[str]] = {}
    for action in observation.actions:
        by_verb.setdefault(action.partition(" ")[0], []).append(action)
    return rng.choice(by_verb[rng.choice(sorted(by_verb))])
