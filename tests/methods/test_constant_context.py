"""Constant context: published settings, ablations, refused settings and a run from the command line."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_modules import write_recipe

from tacit.cli.main import main
from tacit.config.flags import method_options
from tacit.config.values import from_text
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.credit.episode import StepReturns
from tacit.losses.surrogates import PolicyGradient, ReferenceKL, ReferenceLogprobs, SampledPenalty
from tacit.methods import get_method
from tacit.methods.constant_context import ConstantContext
from tacit.prompts.history import StateBlock
from tacit.rewards.outcome import InvalidPenalty, Outcome, ReferencePenalty, StepSignals
from tacit.worlds import get_environment

WORLD = get_environment("alfworld")


def build(**settings):
    return ConstantContext(**settings).build(WORLD)


def test_constant_context_defaults_match_the_paper():
    method = build()
    assert method.context == StateBlock(WORLD.wording("full"), WORLD.tracker, True, True, admissible=False, style="bare")
    assert method.rewards == (Outcome(3.0), StepSignals((("progress", 1.0), ("error", -1.0)), 0.01))
    assert method.credits == (StepReturns(0.98, "population"),)
    assert method.losses == (PolicyGradient(), SampledPenalty(0.02))
    assert method.columns == (ReferenceLogprobs(0.8),)
    assert method.schedule == Schedule(groups=1, group_size=4, iterations=200, lr=5e-6, temperature=0.8)
    assert get_method("constant_context") is ConstantContext


def test_ablation_settings_change_the_method():
    assert ConstantContext().with_prompt(state_block=False).context(WORLD) == replace(build().context, block=False)
    assert ConstantContext().with_prompt(history=0).context(WORLD) == replace(build().context, one_step=False)
    assert build(progress_weight=0.0).rewards[1] == StepSignals((("progress", 0.0), ("error", -1.0)))
    assert build(error_weight=0.0, step_cost=0.0).rewards[1] == StepSignals((("progress", 1.0), ("error", 0.0)), 0.0)
    assert InvalidPenalty(0.1) in build(invalid_penalty=0.1).rewards
    assert build(std="none").credits == (StepReturns(0.98, None),)
    assert build(kl=0.0).losses == (PolicyGradient(),) and build(kl=0.0).columns == ()
    assert build(penalty="k3").losses == (PolicyGradient(), ReferenceKL(0.02, over="actions"))
    inside = build(penalty="reward")
    assert inside.losses == (PolicyGradient(),) and inside.columns == () and "reference" in inside.needs
    assert inside.companions == (ReferencePenalty(0.02, 0.8),) and inside.rewards[-1] is inside.companions[0]


def test_each_reward_component_can_be_left_out():
    assert build(without=("subgoal", "repeated")).rewards[1] == replace(
        build().rewards[1], without=("progress.subgoal", "error.repeated")
    )
    assert build(without=("error.repeated", "repeated")).rewards[1].without == ("error.repeated",)
    assert build(without=("progress",)).rewards[1].without == ("progress",)
    assert build(without=("step_cost",)).rewards[1] == replace(build().rewards[1], step_cost=0.0)
    for name in ("alfworld", "cooking", "countdown", "webshop"):
        world = get_environment(name)
        for component in world.tracker.components:
            method = ConstantContext(without=(component.partition(".")[2],)).build(world)
            assert method.rewards[1].without == (component,)


@pytest.mark.parametrize(
    ("name", "near"), [("subgoals", "subgoal"), ("progress.subgoals", "progress"), ("step-cost", "step_cost")]
)
def test_unknown_reward_component_is_refused_with_suggestion(name, near):
    with pytest.raises(
        TacitError, match=f"unknown reward component '{name}' of world 'alfworld'. Did you mean '{near}'.*wandered"
    ):
        build(without=(name,))


def test_without_flag_parses_a_list_of_components():
    options = {option.flag: option for option in method_options("constant_context")}
    assert from_text(options["--without"].kind, "subgoal,repeated", "--without") == ("subgoal", "repeated")


def test_world_without_tracker_is_refused():
    with pytest.raises(TacitError, match="needs a tracker, and world 'alfworld' has none"):
        ConstantContext().build(replace(WORLD, tracker=None))


@pytest.mark.parametrize("history", [-1, 2])
def test_history_above_one_is_refused(history):
    with pytest.raises(TacitError, match=f"history = {history}"):
        ConstantContext().with_prompt(history=history).build(WORLD)


def test_more_than_one_epoch_is_refused():
    with pytest.raises(TacitError, match="epochs = 2"):
        build(schedule=Schedule(epochs=2))


@pytest.mark.slow
@pytest.mark.parametrize(("world", "split", "steps"), [("countdown", "test", 6), ("alfworld", "unseen", 30)])
def test_two_iterations_from_the_command_line(world, split, steps, tmp_path: Path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    flags = ["--world", world, "--evaluation.split", split, "--max-steps", str(steps), "--tiny.context", "1024"]
    flags += ["--sft.steps", "3", "--engine.lora-rank", "0", "--lr", "1e-3"]
    assert main(["train", "--config", str(write_recipe(tmp_path)), "--out", str(run), *flags]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    practice = [line for line in lines if "reference_kl" in line]
    assert len(practice) == 2 and all(abs(line["loss"]) < 1e3 for line in practice)
