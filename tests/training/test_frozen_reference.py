"""The reference policy is frozen and saved only if a loss needs it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from scripted import Kit, ScriptedPolicy, solve_countdown

from tacit.core.errors import OutOfGPUMemory, TacitError
from tacit.core.method import Schedule
from tacit.methods import METHODS, get_method
from tacit.prompts.history import PromptSettings
from tacit.runs.directory import Run
from tacit.training.reporting import PlainReporter
from tacit.training.settings import EvaluationSettings, TrainSettings
from tacit.training.setup import WorldSetup
from tacit.training.train import Trainer
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
SMALL = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False)}


class Counting(ScriptedPolicy):
    """Counts freezes, and refuses to return a reference that was never frozen."""

    frozen = 0

    def freeze_reference(self) -> None:
        self.frozen += 1

    def reference(self):
        assert self.frozen, "`reference` before `freeze_reference`"
        return self


def settings(name: str, **changes):
    history = 1 if name == "constant_context" else 0
    return get_method(name)(**SMALL, **changes, schedule=Schedule(groups=2, group_size=4, iterations=2)).with_prompt(
        history=history
    )


def train(method, path, policy):
    evaluation = EvaluationSettings(tasks=2, untrained=False, every=0)
    run = Run(path) if (path / "settings.json").exists() else Run.create(path, {"method": {}})
    try:
        settings = TrainSettings(tasks=4, max_steps=4, evaluation=evaluation)
        setups = [WorldSetup.of(WORLD, method, settings)]
        Trainer(run, policy, setups, settings, PlainReporter(io.StringIO())).train()
    finally:
        run.close()


@pytest.mark.parametrize("name", METHODS)
def test_reference_is_frozen_only_if_the_method_needs_it(name, tmp_path):
    """With published settings, for every method."""
    kit = Kit(ScriptedPolicy(lambda prompt, seed: "return"), tmp_path)
    method, policy = settings(name).build(WORLD, kit), Counting(lambda prompt, seed: solve_countdown(prompt))
    train(method, tmp_path / "run", policy)
    assert policy.frozen == int("reference" in method.needs)


@pytest.mark.parametrize("name", ["grpo", "constant_context", "reinforce_pp"])
def test_no_reference_is_frozen_without_a_kl_penalty(name, tmp_path):
    assert "reference" in settings(name, kl=0.1).build(WORLD).needs
    method, policy = settings(name, kl=0.0).build(WORLD), Counting(lambda prompt, seed: solve_countdown(prompt))
    assert "reference" not in method.needs
    train(method, tmp_path / "run", policy)
    assert policy.frozen == 0 and policy.updates


def test_resumed_run_keeps_its_reference(tmp_path):
    method, path = settings("grpo", kl=0.1).build(WORLD), tmp_path / "run"
    train(method, path, Counting(lambda prompt, seed: solve_countdown(prompt)))
    again = Counting(lambda prompt, seed: solve_countdown(prompt))
    again.frozen = 1  # restored from the checkpoint
    train(replace(method, schedule=replace(method.schedule, iterations=3)), path, again)
    assert again.frozen == 1 and len(again.updates) == 1


@pytest.mark.parametrize("error, advised", [(TacitError("it is damaged."), True), (OutOfGPUMemory("the GPU is full."), False)])
def test_damaged_checkpoint_error_advises_deletion_but_out_of_memory_does_not(tmp_path, monkeypatch, error, advised):
    policy = Counting(lambda prompt, seed: solve_countdown(prompt))
    method = settings("grpo").build(WORLD, Kit(policy, tmp_path))
    train(method, tmp_path / "run", policy)

    def fail(directory) -> None:
        raise error

    monkeypatch.setattr(policy, "load", fail)
    with pytest.raises(TacitError, match=str(error)) as raised:
        train(method, tmp_path / "run", policy)
    assert ("delete" in str(raised.value)) is advised
