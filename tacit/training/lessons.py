"""What a run imitates: what an expert or a file shows, and in rounds what the expert says of the policy's own play."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tacit.core.amounts import number_of
from tacit.core.protocols import Policy, Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.rollout.worlds import Punctual, PunctualExpert
from tacit.runs.directory import Run
from tacit.runs.records import write_records
from tacit.training.demonstrations import Demonstrations, demonstrate
from tacit.training.playground import Playground
from tacit.training.practice import Practice
from tacit.training.recordings import imitate_recordings
from tacit.training.relabelling import Relabelled, keep, kept, play_round, relabel, samples, tasks_of_round
from tacit.training.reporting import Attended, Played
from tacit.training.scribing import scribed
from tacit.training.settings import TrainSettings


def demonstrated(
    practice: Practice, tokenizer: Tokenizer, seed: int, several: bool, say: Callable[[str], None]
) -> Demonstrations:
    """What is shown in one world, before the policy plays."""
    settings, world, context = practice.settings.sft, practice.world, practice.method.context
    if settings.from_:
        families = practice.settings.family_names
        shown, notes = imitate_recordings(
            Path(settings.from_), world, practice.course.tasks, context, tokenizer, settings.tasks, families
        )
        for note in notes:
            say(f"imitation: {note}")
        say(f"imitation: {shown}")
        return shown
    tasks, limit_s = practice.course.tasks[: settings.tasks], practice.settings.world_timeout_s
    experts = {name: partial(PunctualExpert, make, limit_s) for name, make in world.experts.items()}
    world = replace(world, make=partial(Punctual, world.make, limit_s), experts=experts)
    say(f"imitation: the expert plays {number_of(len(tasks), 'task')}{f' of {world.name}' if several else ''}")
    shown = demonstrate(world, tasks, context, tokenizer, world.max_steps, settings.expert, settings.noise, seed)
    say(f"imitation: {shown}")
    if settings.noted or settings.step_notes or settings.entries:
        more = scribed(world, tasks, context, tokenizer, world.max_steps, settings, seed)
        say(f"imitation: and {number_of(len(more), 'sample')} of how notes are read and entries written")
        shown = Demonstrations.joined([shown, more])
    return shown


@dataclass(frozen=True)
class Rounds:
    """The rounds of relabelling of one run."""

    run: Run
    policy: Policy
    practices: Sequence[Practice]
    playgrounds: Sequence[Playground]
    settings: TrainSettings
    reporter: Attended

    def relabelled(self, number: int, begun: bool) -> tuple[Demonstrations, dict[str, float]]:
        """What round `number` (from 1) adds, and its metrics. One that had `begun` before the run was killed is read again: the
        policy that played it is not there any more."""
        begin = self.settings.sft.round_begins(number)
        place = self.run.path / "relabelled" / f"{begin:06d}.npz"
        if begun:
            return kept(place), {}
        parts, records, metrics = [], list[dict[str, Any]](), dict[str, float]()
        for ground, practice in zip(self.playgrounds, self.practices, strict=True):
            relabelled = self._play(number, ground, practice)
            parts.append(samples(relabelled, practice.method.context, self.policy))
            records += relabelled.records()
            metrics |= {f"{ground.name}/{k}" if ground.name else k: value for k, value in relabelled.metrics().items()}
            self.reporter.say(f"round {number}{f' in {ground.name}' if ground.name else ''}: {relabelled}")
        fresh = Demonstrations.joined(parts)
        keep(fresh, place)
        if self.settings.trajectories:
            write_records(self.run.trajectories("relabel", begin), records)
        return fresh, metrics

    def _play(self, number: int, ground: Playground, practice: Practice) -> Relabelled:
        chosen, schedule, context = practice.settings.sft, practice.method.schedule, practice.method.context
        tasks = tasks_of_round(practice.course.tasks, chosen.tasks, number, chosen.round_tasks)
        sampling = Sampling(temperature=schedule.temperature, top_p=schedule.top_p, max_tokens=ground.max_tokens)
        seed = derive(self.settings.seed, "relabel", number, ground.name)
        onlooker = Played(f"round {number}", len(tasks), ground.max_steps, self.policy)
        self.reporter.going_on(onlooker.line)
        played = play_round(tasks, seed, context, ground.worlds, self.policy, sampling, ground.max_steps, onlooker)
        return relabel(practice.world, played, chosen.expert, practice.settings.world_timeout_s)
