"""Relabelling (DAgger: Ross, Gordon, Bagnell 2011): the policy plays, and at every turn the expert says what it would do there.

    D ← D ∪ {(prompt of s, expert(s)) : s visited by the policy}

Demonstrations show where the expert comes to. These show where the policy comes to, lost episodes and refused actions among
them, and how one goes on from there. Which action the policy took decides where it came, never what is imitated.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.amounts import number_of
from tacit.core.errors import TacitError, told_of
from tacit.core.method import Context
from tacit.core.protocols import Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import Step, Task, Trajectory
from tacit.core.world import Adviser, Environment
from tacit.rollout.crashes import describe_crashes, refuse_if_all_crashed
from tacit.rollout.episodes import EpisodePlan, SamplingPolicy, rollout
from tacit.rollout.fitting import encode_action
from tacit.rollout.onlookers import NOBODY, Onlooker
from tacit.rollout.worlds import PunctualExpert, WorldPool
from tacit.runs.files import disk_errors
from tacit.runs.trajectories import trajectory_record
from tacit.training.demonstrations import HOPELESS, Demonstrations
from tacit.training.settings import TrainSettings

BATCH = 256
"""episodes played side by side"""


@dataclass(frozen=True)
class Relabelled:
    """Episodes of the policy, with what the expert said of their turns."""

    played: list[Trajectory] = field(default_factory=list)
    advice: list[list[str]] = field(default_factory=list)
    """of each episode: the expert's actions, one for each turn as far as it could be asked"""
    broken: list[str] = field(default_factory=list)
    """why the expert could not be asked to the end of an episode"""

    @property
    def turns(self) -> list[tuple[Step, str]]:
        """every turn with the expert's action"""
        episodes = zip(self.played, self.advice, strict=True)
        return [pair for trajectory, told in episodes for pair in zip(trajectory.steps, told, strict=False)]

    @property
    def agreement(self) -> float:
        """The share of turns in which the expert would have done what the policy did."""
        same = [step.action == said for step, said in self.turns]
        return float(np.mean(same)) if same else 0.0

    @property
    def won(self) -> int:
        return sum(trajectory.success for trajectory in self.played)

    def metrics(self) -> dict[str, float]:
        return {
            "relabel_agreement": self.agreement,
            "relabel_success": self.won / len(self.played),
            "relabel_turns": float(len(self.turns)),
        }

    def records(self) -> list[dict[str, Any]]:
        """The episodes as they are recorded, each turn with the `expert`'s action."""
        records = [trajectory_record(trajectory) for trajectory in self.played]
        for record, told in zip(records, self.advice, strict=True):
            for turn, said in zip(record["turns"], told, strict=False):
                turn["expert"] = said
        return records

    def __str__(self) -> str:
        lost = f"; in {len(self.broken)} the expert broke, the first: {self.broken[0]}" if self.broken else ""
        crashed = f"; {text}" if (text := describe_crashes(self.played)) else ""
        played = f"{number_of(len(self.turns), 'turn')} of {number_of(len(self.played), 'episode')} ({self.won} won)"
        return f"{played}, the expert would have done the same in {self.agreement:.1%}{lost}{crashed}"


def check_adviser(world: Environment, expert: str) -> None:
    """Refuse an expert that only knows its own episodes, where one can tell before any is made."""
    make = world.expert(expert or None)
    if isinstance(make, type) and not issubclass(make, Adviser):
        raise _no_adviser(world, expert)


def relabel(
    world: Environment, played: Sequence[Trajectory], expert: str = "", timeout_s: float = TrainSettings.world_timeout_s
) -> Relabelled:
    """Ask the expert at every turn of episodes that somebody else played; it is given up where it never answers at all."""
    make, found = world.expert(expert or None), Relabelled()
    for trajectory in played:
        if len(found.broken) == HOPELESS and not any(found.advice):
            break
        told: list[str] = []
        try:
            adviser = PunctualExpert(make, timeout_s, trajectory.task)
            if not isinstance(adviser, Adviser):
                raise _no_adviser(world, expert)
            for step in trajectory.steps:
                told.append(adviser.act(step.observation))
                adviser.happened(step.action)
        except TacitError:
            raise
        except (Exception, SystemExit) as error:
            found.broken.append(told_of(error))
        found.played.append(trajectory)
        found.advice.append(told)
    return found


def samples(relabelled: Relabelled, context: Context, tokenizer: Tokenizer) -> Demonstrations:
    """What the policy read, word for word, with the expert's answer."""
    prompts, completions = [], []
    for step, said in relabelled.turns:
        completion = encode_action(step.prompt, said, context.format, tokenizer)
        if len(step.prompt_tokens) + len(completion) <= tokenizer.context_limit:
            prompts.append(step.prompt_tokens)
            completions.append(completion)
    too_long = len(relabelled.turns) - len(prompts)
    if not prompts:
        raise TacitError(
            f"nothing was relabelled: {relabelled}; {too_long} turns do not fit in the model. Mend the expert, or leave "
            "sft.rounds out."
        )
    return Demonstrations(prompts, completions, len(relabelled.played), relabelled.won, len(relabelled.broken), too_long)


def play_round(
    tasks: Sequence[Task],
    seed: int,
    context: Context,
    worlds: WorldPool,
    policy: SamplingPolicy,
    sampling: Sampling,
    max_steps: int,
    onlooker: Onlooker = NOBODY,
) -> list[Trajectory]:
    """One episode of each task. Refused where no world could be played to its end."""
    plans = [EpisodePlan(task, derive(seed, i)) for i, task in enumerate(tasks)]
    played = []
    for start in range(0, len(plans), BATCH):
        played += rollout(plans[start : start + BATCH], context, worlds, policy, sampling, max_steps, onlooker=onlooker)
    refuse_if_all_crashed(played, "There is nothing to relabel. Mend the world, then go on with `tacit train --resume RUN`.")
    return played


def tasks_of_round(tasks: Sequence[Task], shown: int, number: int, count: int) -> list[Task]:
    """`count` training tasks for round `number` (from 1): first those after the `shown` ones, then from the beginning."""
    begin = shown + (number - 1) * count
    return [tasks[(begin + i) % len(tasks)] for i in range(count)]


def keep(shown: Demonstrations, place: Path) -> None:
    """What was relabelled, as tokens: a killed run goes on with exactly these."""
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.tmp")
        try:
            with temporary.open("wb") as file:
                np.savez_compressed(
                    file, prompts=np.concatenate(shown.prompts), prompt_lengths=[len(p) for p in shown.prompts],
                    completions=np.concatenate(shown.completions), completion_lengths=[len(c) for c in shown.completions],
                    counts=[shown.episodes, shown.won, shown.broken, shown.too_long],
                )  # fmt: skip
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)


def kept(place: Path) -> Demonstrations:
    """The inverse of `keep`."""
    try:
        with np.load(place) as file:
            prompts, completions = (
                np.split(file[f"{name}s"], np.cumsum(file[f"{name}_lengths"])[:-1]) for name in ("prompt", "completion")
            )
            return Demonstrations(prompts, completions, *map(int, file["counts"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise TacitError(
            f"cannot read what was relabelled before this run stopped, {place}: {error}. Delete the checkpoints after sft "
            f"{int(place.stem)}, and the round is played anew."
        ) from error


def _no_adviser(world: Environment, expert: str) -> TacitError:
    name = expert or next(iter(world.experts))
    able = [n for n, make in world.experts.items() if isinstance(make, type) and issubclass(make, Adviser)]
    other = f"choose {' or '.join(able)} (--sft.expert)" if able else "show recoveries with --sft.noise"
    return TacitError(
        f"the expert {name!r} of world {world.name!r} knows only episodes of its own and cannot say what to do in a policy's: "
        f"{other}, leave sft.rounds out, or give it `happened` (Adviser in tacit/core/world.py)."
    )
