"""Run a prepared training run, from the command line or from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tacit.config.agents import as_policy
from tacit.config.checks import AGENTS, Prepared, prepare
from tacit.config.recipe import Recipe
from tacit.core.errors import EngineLost
from tacit.core.progress import format_duration, report_elapsed
from tacit.rollout.encoding import check_chat_support
from tacit.runs.directory import SETTINGS, Run, open_checkpoints, read_settings
from tacit.runs.files import write_json
from tacit.training.loop import check_overlap_policy
from tacit.training.reporting import Callback, Reporter
from tacit.training.setup import WorldSetup
from tacit.training.train import Trainer

MAX_RESTARTS = 3  # restarts after lost engine processes without a new checkpoint in between


def run_training(
    prepared: Prepared,
    resume: bool,
    make_reporter: Callable[[], Reporter],
    callbacks: Sequence[Callback] = (),
    on_start: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run the remaining stages of a run and return its summary.

    `on_start` is called once the run directory exists. If the engine's processes are lost, they are restarted and the run
    continues from the last checkpoint.
    """
    out, worlds = prepared.recipe.out, prepared.worlds
    losses: list[str] = []
    while True:
        try:
            return _run_once(prepared, resume, make_reporter, callbacks, on_start)
        except EngineLost as lost:
            settings = lost.settings
            newest = open_checkpoints(out).newest() if (out / SETTINGS).exists() else None
            losses.append(newest.path.name if newest else "")
            if not (out / SETTINGS).exists() or losses[-MAX_RESTARTS - 1 :].count(losses[-1]) > MAX_RESTARTS:
                raise
        recipe = replace(Recipe.from_json(read_settings(out)), out=out)
        prepared, resume = prepare(replace(recipe, engine=replace(recipe.engine, **settings)), worlds), True


def _run_once(
    prepared: Prepared,
    resume: bool,
    make_reporter: Callable[[], Reporter],
    callbacks: Sequence[Callback],
    on_start: Callable[[], None],
) -> dict[str, Any]:
    recipe, reporter = prepared.recipe, make_reporter()
    try:
        with report_elapsed(reporter.now, lambda spent: f"loading {recipe.model}, {format_duration(spent)}"):
            setups: Sequence[WorldSetup] = prepared.setups()
            if recipe.model in AGENTS:
                policy, setup = as_policy(recipe.model, setups[0])
                setups = (setup,)
            else:
                policy = prepared.resources.open()
            for setup in setups:
                check_chat_support(setup.method.context, policy)
                for companion in setup.method.companions:
                    companion.check(policy)
            check_overlap_policy(recipe.train, policy)
        keep, wandb = recipe.train.keep, recipe.train.wandb
        run = Run(recipe.out, keep, wandb) if resume else Run.create(recipe.out, recipe.to_json(), keep, wandb)
        on_start()
        try:
            if resume:
                write_json(recipe.out / SETTINGS, recipe.to_json())
            resources = prepared.resources
            trainer = Trainer(run, policy, setups, recipe.train, reporter, resources.policies, callbacks, resources.same_start)
            return trainer.train()
        except EngineLost as lost:
            less = ", ".join(f"{name} = {value}" for name, value in lost.settings.items())
            reporter.say(f"warning: {lost} The run restarts automatically{f' with {less}' if less else ''}.")
            for loaded in (policy, *prepared.resources.policies.values()):
                loaded.close()
            raise
        finally:
            run.close()
    finally:
        reporter.close()
