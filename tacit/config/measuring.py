"""Evaluation of an agent on a panel. Finished episodes are not played again, and the result records all its settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.config.agents import UNTRAINED, Target
from tacit.config.checks import EXPERT, RULE_AGENT, open_world
from tacit.config.recipe import Overrides, Recipe
from tacit.core.errors import TacitError, unknown
from tacit.core.seeds import derive
from tacit.core.types import Trajectory
from tacit.evaluation.behavior import Behavior, TokenUse, behavior, count_tokens, join_uses, react_contexts, replay_observations
from tacit.evaluation.evaluate import Journal, Measurement, play_panel
from tacit.evaluation.panels import PANEL_SEED, Panel, choose_panel, is_panel_file, read_panel
from tacit.evaluation.scores import PanelScore, in_world, score_panel
from tacit.rollout.episodes import NO_OBSERVER, EpisodePlan, RolloutObserver
from tacit.rollout.worlds import refuse_if_all_crashed
from tacit.runs.directory import SETTINGS, code_version, find_summary, read_settings
from tacit.runs.files import write_json
from tacit.training.setup import make_worlds
from tacit.worlds import REGISTRY

PANEL_SETTINGS = ("split", "tasks", "repeats", "temperature", "top_p", "top_k", "max_steps")  # of [evaluation]
PANEL = ("evaluation", "panel")
SPLIT, TASKS = ("evaluation", "split"), ("evaluation", "tasks")
PICKS = (SPLIT, TASKS, ("families",))  # settings that choose tasks of a split


def with_panel(overrides: Overrides, name: str, target: str) -> Overrides:
    """Settings of the panel `name` (`countdown/test/128`, or a file). Without a name, choosing tasks of a split overrides
    the run's panel file."""
    if not name:
        return {**overrides, PANEL: ""} if any(place in overrides for place in PICKS) else overrides
    run = run_of(target) if target else None
    played = overrides.get(("world",)) or (read_settings(run)["world"] if run else None)
    if is_panel_file(name):
        if picked := next((place[-1] for place in PICKS if place in overrides), None):
            raise TacitError(f"--{picked} selects from a split and has no effect on a file; edit {name} instead.")
        world = read_panel(Path(name).expanduser()).tasks[0].world  # before anything is loaded
        return {**overrides, PANEL: name, **({} if played else {("world",): world})}
    place, _, count = name.rpartition("/")
    world, _, split = place.rpartition("/")
    if not world or not split or not count.isdigit():
        raise TacitError(
            f"--panel {name!r} is not a panel: give WORLD/SPLIT/TASKS, such as countdown/test/128, or a .json or .jsonl "
            "file of tasks."
        )
    splits = open_world(world).splits
    if split not in splits:
        raise unknown("panel", name, [f"{world}/{s}/{count}" for s in splits])
    if played and played != world:
        raise TacitError(f"panel {name!r} belongs to world {world!r}, but {target!r} plays {played!r}.")
    return {**overrides, ("world",): world, SPLIT: split, TASKS: int(count), PANEL: ""}


def run_of(word: str) -> Path | None:
    """The run directory of a target: itself, or its checkpoint's."""
    path = Path(word).expanduser()
    places = (path, path.parent.parent) if path.parent.name == "checkpoints" else (path,)
    return next((place for place in places if (place / SETTINGS).exists()), None)


def _code(recipe: Recipe) -> str:
    """The version of tacit, and the files of the user's worlds: after a change of either, episodes are played again."""
    return ", ".join(filter(None, (code_version(), *(REGISTRY.file_hash(place.world) for place in recipe.places))))


COUNTED = ("successes", "score", "steps", "invalid", "prompt_tokens", "completion_tokens")  # equal for the same episodes
OUTPUT_DIRECTORY = Path("evaluations")  # directory for episodes of agents that are not runs


@dataclass(frozen=True)
class EvaluationResult:
    played: list[Trajectory]
    score: PanelScore
    behavior: Behavior
    earlier: dict[str, Any] | None  # the run's own evaluation of this checkpoint, if it played the same episodes
    result: dict[str, Any]  # as saved


class PanelEvaluation:
    """An agent on a panel. The constructor raises if the agent cannot be evaluated, before any episode is played."""

    def __init__(
        self,
        target: Target,
        ks: Sequence[int] = (),
        out: Path | None = None,
        fresh: bool = False,
        overrides: Overrides | None = None,
    ) -> None:
        self.target, self.rules, self.ks = target, target.rules, ks
        train, overrides = target.recipe.train, overrides or {}
        chosen = train.evaluation
        # A published split without a number of tasks means the whole split.
        whole = SPLIT in overrides and TASKS not in overrides
        count = target.world.panel_size(chosen.split, chosen.tasks) if whole else chosen.tasks
        self.panel = choose_panel(target.world, chosen.split, count, train.family_names, chosen.panel)
        if ks and (most := max(ks)) > self.rules.repeats:
            raise TacitError(
                f"--k {most} needs {most} episodes per task, and --repeats is {self.rules.repeats}: add --repeats {most}."
            )
        self.measurement = Measurement.of(
            self.panel, self.rules, target.label, target.fingerprint, target.reads, target.policy.numbers, _code(target.recipe)
        )
        # Experts and rule agents are cheap to replay and are only saved with --out.
        usual = None if target.label in (EXPERT, RULE_AGENT) else OUTPUT_DIRECTORY / _slug(target.label)
        self.directory = out or (target.run / "evaluations" if target.run is not None else usual)
        self.journal = Journal(self.directory, self.measurement) if self.directory else None
        if self.journal and fresh:
            self.journal.reset_files()

    @property
    def episodes(self) -> int:
        return len(self.panel.tasks) * self.rules.repeats

    def play(
        self, batch: int, observer: RolloutObserver = NO_OBSERVER, on_resume: Callable[[int], None] | None = None
    ) -> EvaluationResult:
        target, worlds = self.target, make_worlds(self.target.world, self.target.recipe.train)
        try:
            played = play_panel(
                self.panel, self.rules, worlds, target.route, batch=batch, journal=self.journal, on_resume=on_resume,
                observer=observer, settle=target.settle,
            )  # fmt: skip
        finally:
            worlds.close()
        # An agent without a single usable completion was not evaluated.
        turns = sum(len(t) for t in played)
        if turns and sum(t.unusable for t in played) == turns:
            reason = next(iter(target.policy.broken), "no answer was returned")
            raise TacitError(
                f"none of the {turns} answers of {target.label} could be used; nothing was saved. The first: {reason}"
            )
        refuse_if_all_crashed(played, "There is nothing to measure, and nothing was saved.")
        score = score_panel(self.panel, played, self.rules, self.ks)
        how = behavior(played, target.world.alphabet, target.world.failure, target.world.place)
        earlier, measured = _own_evaluation(target, score), self.measurement
        result = {
            "target": target.label,
            "world": target.world.name,
            "checkpoint": target.checkpoint.path.name if target.checkpoint else None,
            **score.to_json(),
            "run_success": earlier["success"] if earlier else None,
            "equals_run": all(earlier[name] == getattr(score, name) for name in COUNTED) if earlier else None,
            "fingerprint": measured.fingerprint,
            "settings_hash": measured.settings_hash,
            "code": measured.code,
            "max_steps": measured.max_steps,
            "reads": measured.reads,
            "numbers": measured.numbers,
            "panel_differs": self.panel.difference(),
            "behaviour": how.to_json(),
            "episodes_file": self.journal.path.name if self.journal else None,
        }
        return EvaluationResult(played, score, how, earlier, result)

    def account(self, measured: EvaluationResult) -> list[TokenUse]:
        """Count the tokens of these episodes under the agent's own prompt, and under ReAct-1step and ReAct-full with the same
        wording, with and without the list of actions. Adds the counts to the result.

        Recordings lack the actions that the world listed, so recorded episodes are replayed. With skill modules, each module's
        episodes use its own prompt."""
        target, live = self.target, self.target.world.make()
        shares: dict[str, list[Trajectory]] = {}
        try:
            for t in measured.played:
                if not t.stop.crashed:
                    listed = any(s.observation.actions for s in t.steps)
                    shares.setdefault(target.route.name(t.task), []).append(t if listed else replay_observations(t, live))
        finally:
            live.close()
        parts = []
        for name, share in shares.items():
            context, policy = target.route.agent(name)
            wording = context.wording or target.world.wording(target.recipe.settings.prompt.wording)
            parts.append(count_tokens(share, {"own context": context, **react_contexts(wording)}, policy))
        uses = [join_uses(uses) for uses in zip(*parts, strict=True)]
        measured.result["tokens"] = [use.figures for use in uses]
        return uses

    def keep(self, measured: EvaluationResult) -> Path | None:
        """Save the result next to the episodes, in one file per combination of settings. The file name has the main settings
        and the hashes of the episode file. Returns None if there is no output directory."""
        if self.directory is None:
            return None
        result, sampling = measured.result, measured.result["sampling"]
        parts = [result["checkpoint"] or _slug(result["target"]) or "untrained", result["panel"]]
        parts += [f"x{result['repeats']}", f"t{sampling['temperature']:g}"]
        parts += [f"p{sampling['top_p']:g}"] if sampling["top_p"] != 1 else []
        parts += [f"k{sampling['top_k']}"] if sampling["top_k"] else []
        parts += [f"seed{result['seed']}", f"{result['panel_hash']}-{result['settings_hash']}"]
        place = self.directory / f"{_slug('_'.join(parts))}.json"
        write_json(place, result)
        return place


def episode_at(target: Target, number: int) -> EpisodePlan:
    """The episode at this index of the split's panel, with the target's seed."""
    train = target.recipe.train
    panel = Panel.of(target.world, train.evaluation.split, number + 1, train.family_names)
    if len(panel.tasks) <= number:
        raise TacitError(f"--task {number}: this split has {len(panel.tasks)} tasks, counted from 0.")
    return EpisodePlan(panel.tasks[number], derive(PANEL_SEED, target.seed, number, 0))


def _own_evaluation(target: Target, score: PanelScore) -> dict[str, Any] | None:
    """The run's own evaluation of this checkpoint on the same episodes, or None."""
    if target.run is None:
        return None
    own, world = Recipe.from_json(read_settings(target.run)), target.recipe.world
    if world not in [place.world for place in own.places]:
        return None
    there = own.at(world)
    steps = there.train.evaluation.max_steps or target.world.max_steps
    if (there.settings, steps) != (target.recipe.settings, target.rules.max_steps):
        return None
    state = find_summary(target.run) or (target.checkpoint.state() if target.checkpoint else {"evaluations": []})
    stage, step = (target.checkpoint.stage, target.checkpoint.step) if target.checkpoint else (UNTRAINED, 0)
    now = {"stage": stage, "step": step, **json.loads(json.dumps(score.to_json()))}
    keys = ("stage", "step", "panel_hash", "episodes", "sampling", "seed")
    measured = (in_world(e, world) for e in state.get("evaluations", ()))
    return next((e for e in measured if all(e.get(key) == now[key] for key in keys)), None)


def _slug(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
