"""A prepared run, carried out: the one way there is, whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tacit.assembly.checks import AGENTS, Prepared
from tacit.assembly.players import seated
from tacit.rollout.fitting import check_talk
from tacit.runs.directory import SETTINGS, Run
from tacit.runs.files import write_json
from tacit.training.events import Callback
from tacit.training.reporting import Reporter
from tacit.training.train import Trainer


def carry_out(
    prepared: Prepared,
    resume: bool,
    make_reporter: Callable[[], Reporter],
    callbacks: Sequence[Callback] = (),
    begun: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Everything that is left of a run; returns its summary. `begun` is told once there is a run directory to come back to:
    until then whatever goes wrong has cost nothing."""
    recipe = prepared.recipe
    practices = prepared.practices()
    if recipe.model in AGENTS:
        policy, practice = seated(recipe.model, practices[0])
        practices = (practice,)
    else:
        policy = prepared.toolbox.open()
    for practice in practices:
        check_talk(practice.method.context, policy)
    keep, wandb = recipe.train.keep, recipe.train.wandb
    run = Run(recipe.out, keep, wandb) if resume else Run.create(recipe.out, recipe.to_json(), keep, wandb)
    begun()
    reporter = make_reporter()
    try:
        if resume:
            write_json(recipe.out / SETTINGS, recipe.to_json())
        trainer = Trainer(run, policy, practices, recipe.train, reporter, prepared.toolbox.policies, callbacks)
        return trainer.train()
    finally:
        reporter.close()
        run.close()
