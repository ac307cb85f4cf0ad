"""How a note is read and how one is written, shown by rule: where a tiny actor and a tiny extractor begin.

A language model can do both when it is asked. A policy of a million parameters cannot, so beside the expert's episodes may be
shown, with what the world's own hindsight says of an episode:

    noted      an expert's episode as a guided agent reads it, with a note
    step_notes the critical steps of an episode, each with what hindsight says of it before the request, and the expert's action
    judged     each such note with its task and some success rate: accept it, or reject it where it is another episode's
    entries    the record of an episode as an extractor reads it, and what is to be written down

A share of the notes and entries (`astray`) is that of another episode, and so mostly wrong; the action is the expert's all the
same. What is imitated is then that a note may be trusted so far and no further, and that entries are no better than that: what
helps is left to practice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from tacit.companions.experience.asking import distilling, weighing
from tacit.companions.experience.companion import GUIDED
from tacit.contexts.notes import teach
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.seeds import derive
from tacit.core.skills import Lesson, Skills
from tacit.core.types import Condition, Task, Trajectory
from tacit.core.world import Environment, Expert, World
from tacit.rollout.retelling import as_trajectory, playing, recorded, told
from tacit.training.demonstrations import Demonstrations, Sample, Straying, play, sample
from tacit.training.settings import SupervisedSettings

ANSWER_TOKENS = 64
"""room for an entry, as a tiny extractor has it"""
LOST = 0.9
"""share of random turns in every second record: an extractor reads of failures more often than of anything else"""
WITH_ENTRY = 0.5
"""share of the records of an agent that had been given an entry; in half of them it is to be updated"""


@dataclass(frozen=True)
class Scribe:
    world: Environment
    live: World
    make_expert: Callable[[Task], Expert]
    tasks: Sequence[Task]
    max_steps: int
    noise: float
    astray: float

    def note(self, task: Task, rng: Random) -> tuple[str, bool]:
        """(what a straight episode of the task teaches, True), or what one of another task does, and False."""
        wrong = rng.random() < self.astray
        told = self._teaches(self._episode(rng.choice(self.tasks) if wrong else task, 0.0, rng))
        return told, not wrong

    def entry(self, task: Task, rng: Random, tokenizer: Tokenizer) -> Sample | None:
        """A record, and what is to be written down of it; None where it does not fit in the model."""
        trajectory = self._episode(task, rng.choice((self.noise, LOST)), rng)
        text = self._teaches(trajectory)
        if text and rng.random() < self.astray:
            text = self._teaches(self._episode(rng.choice(self.tasks), self.noise, rng)) or text
        given = self.note(task, rng)[0] if rng.random() < WITH_ENTRY else ""
        word = "update" if given and rng.random() < 0.5 else "add"
        room = 3 * max(64, tokenizer.context_limit - ANSWER_TOKENS)
        prompt = tokenizer.encode_prompt(distilling(trajectory, given, "terse", room))
        completion = tokenizer.encode_completion(f"{word}: {text}" if text else "return")
        return (prompt, completion) if len(prompt) + len(completion) <= tokenizer.context_limit else None

    def critical(self, task: Task, rng: Random, context: Context, tokenizer: Tokenizer) -> list[Sample | None]:
        """The steps on which an episode turned, straight or lost: what is read there with the step's note, and what the expert
        would have done."""
        player = self.player(task, rng.choice((self.noise, LOST)), rng)
        trajectory = self._trajectory(task, player, rng)
        notes = self._skills(trajectory).steps
        other = self._skills(self._episode(rng.choice(self.tasks), LOST, rng)).steps
        shown = []
        for t, turn in enumerate(told(context, task, recorded(trajectory))):
            if t in notes:
                astray = bool(other) and rng.random() < self.astray
                note = rng.choice(sorted(other.values())) if astray else notes[t]
                taught = replace(turn, prompt=teach(turn.prompt, Lesson(step=note)), action=player.wishes[t])
                shown.append(sample(taught, context, tokenizer))
        return shown

    def player(self, task: Task, noise: float, rng: Random) -> Straying:
        return Straying(self.make_expert(task), noise, rng)

    def _episode(self, task: Task, noise: float, rng: Random) -> Trajectory:
        return self._trajectory(task, self.player(task, noise, rng), rng)

    def _trajectory(self, task: Task, player: Straying, rng: Random) -> Trajectory:
        return as_trajectory(task, playing(self.live, task, player, self.max_steps), rng.randrange(2**31))

    def _teaches(self, trajectory: Trajectory) -> str:
        return " ".join(self._skills(trajectory).episode.split())

    def _skills(self, trajectory: Trajectory) -> Skills:
        if self.world.hindsight is None:
            asked = "leave sft.noted, sft.step_notes and sft.entries out."
            raise TacitError(f"world {self.world.name!r} has no hindsight to note by: {asked}")
        return self.world.hindsight(trajectory)


def scribed(
    world: Environment,
    tasks: Sequence[Task],
    context: Context,
    tokenizer: Tokenizer,
    max_steps: int,
    settings: SupervisedSettings,
    seed: int,
) -> Demonstrations:
    """Everything of these kinds that the settings ask for; tasks come again where they are fewer."""
    live = world.make()
    scribe = Scribe(world, live, world.expert(settings.expert or None), tasks, max_steps, settings.noise, settings.astray)
    shown: list[Sample | None] = []
    won = 0
    for i in range(settings.noted):
        task, rng = tasks[i % len(tasks)], Random(derive(seed, "noted", i))
        note, true = scribe.note(task, rng)
        player = scribe.player(task, settings.noise, rng)
        success, turns = play(live, player, task, context, tokenizer, max_steps, Condition(GUIDED, note))
        won += success
        shown += turns if success else []
        question, verdict = weighing(task.goal, note, rng.random(), "terse"), "accept" if true else "reject"
        shown.append((tokenizer.encode_prompt(question), tokenizer.encode_completion(verdict)))
    for i in range(settings.step_notes):
        shown += scribe.critical(tasks[i % len(tasks)], Random(derive(seed, "step note", i)), context, tokenizer)
    for i in range(settings.entries):
        shown.append(scribe.entry(tasks[i % len(tasks)], Random(derive(seed, "entry", i)), tokenizer))
    live.close()
    fitting = [sample for sample in shown if sample is not None]
    return Demonstrations(
        [p for p, _ in fitting],
        [c for _, c in fitting],
        settings.noted + settings.step_notes + settings.entries,
        won + settings.step_notes + settings.entries,
        too_long=len(shown) - len(fitting),
    )
