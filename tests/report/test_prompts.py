"""Prompts written anew are the ones that were read; where they cannot be, it is said why. And the command repeats the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import ScriptedPolicy, stumble_through_countdown

from tacit.assembly.flags import Parser
from tacit.assembly.recipe import Recipe, method_name, override
from tacit.cli.main import main
from tacit.cli.report import what_is_known
from tacit.cli.train import make_parser
from tacit.contexts.history import History
from tacit.contexts.state_block import StateBlock
from tacit.core.protocols import Sampling
from tacit.environments import get_environment
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel
from tacit.evaluation.rules import Rules
from tacit.report.known import Known
from tacit.report.prompts import prompts_of, sections
from tacit.report.provenance import command, flat
from tacit.rollout.worlds import InPlace
from tacit.runs.trajectories import trajectory_record

WORLD = get_environment("countdown")
TERSE = WORLD.wording("terse")
CONTEXT = History(TERSE, turns=2, admissible=False, style="bare")
PANEL = Panel.of(WORLD, "test", 6)
KNOWN = Known(WORLD, {task.id: task for task in PANEL.tasks}, CONTEXT)


def play(context):
    policy = ScriptedPolicy(stumble_through_countdown)
    return evaluate(PANEL, Rules(Sampling(max_tokens=64), 8), InPlace(WORLD.make), context, policy)[1]


@pytest.fixture(scope="module")
def played():
    return play(CONTEXT)


@pytest.mark.parametrize("context", [CONTEXT, StateBlock(TERSE, WORLD.tracker)], ids=["history", "state block"])
def test_prompts_written_anew_are_the_ones_that_were_read(context):
    played = play(context)
    for trajectory in played:
        told = prompts_of(trajectory_record(trajectory), replace(KNOWN, context=context))
        assert told.turns == [sections(step.prompt) for step in trajectory.steps] and "written anew" in told.source
    assert max(len(t.steps) for t in played) > 3, "long enough for history to be left out"
    assert any(not step.effective for t in played for step in t.steps), "what was refused is played again too"


def test_a_world_that_answers_differently_claims_nothing(played):
    record = trajectory_record(played[0])
    record["turns"][1]["saw"] += " and a hat"
    told = prompts_of(record, KNOWN)
    assert told.turns == [] and "the world now answers differently at step 2" in told.source


def test_why_there_are_no_prompts(played):
    record = trajectory_record(played[0])
    assert "the world is not here" in prompts_of(record, Known()).source
    assert "the note that was in them is not on record" in prompts_of({**record, "condition": "guided"}, KNOWN).source

    def broken():
        raise RuntimeError("no simulator")

    told = prompts_of(record, replace(KNOWN, world=replace(WORLD, make=broken)))
    assert "RuntimeError: no simulator" in told.source and told.turns == []


@pytest.mark.parametrize(
    "document",
    [
        {"world": "countdown", "method": "ppo", "model": "tiny", "seed": 5},
        {"world": "alfworld", "method": {"name": "constant_context", "kl": 0.5}, "evaluation": {"untrained": False}},
        {"world": "cooking", "model": "some/model", "engine": {"lora_targets": ["q_proj", "v_proj"], "device": "cpu"},
         "schedule": {"lr": 3e-5, "group_size": 4}, "sft": {"noise": 0.25}},
    ],
)  # fmt: skip
def test_the_command_on_the_page_repeats_the_run(document):
    """Read by the real parser, it gives the settings it was made from."""
    recipe = Recipe.from_json(document)
    told = recipe.to_json()
    usual = Recipe.from_json({"world": recipe.world, "model": recipe.model, "method": recipe.method}).to_json()
    words = command(flat(told), flat(usual))
    assert words[:2] == ["tacit", "train"]
    parser: Parser = make_parser(method_name(document), recipe.model)
    _, said = parser.parse(words[2:])
    again = Recipe.from_json(override({}, said))
    assert replace(again, out=recipe.out) == recipe


def test_what_is_known_of_settings_that_are_not_ours():
    assert "unknown method" in what_is_known({"world": "countdown", "method": {"name": "gone"}}).notices[0]
    lost = what_is_known({"world": "nowhere.at:ALL", "method": {"name": "grpo"}, "model": "tiny"})
    assert lost.world is None and lost.defaults is not None and "The world is not here" in lost.notices[0]


def test_help_says_what_it_takes(capsys):
    assert main(["report", "--help"]) == 0
    assert "RUN_OR_COMPARISON" in capsys.readouterr().out
