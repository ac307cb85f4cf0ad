"""Prompts written anew are the ones that were read; where they cannot be, it is said why. And the command repeats the run."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from scripted import ScriptedPolicy, stumble_through_countdown

from tacit.cli.main import main
from tacit.cli.train import make_parser
from tacit.config.flags import Parser
from tacit.config.recipe import Recipe, method_name, override
from tacit.core.protocols import Sampling
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel, Rules
from tacit.prompts.history import History
from tacit.prompts.state_block import StateBlock
from tacit.report.run_files import TaskContext, find_world_info
from tacit.report.run_page import build_command, flatten_settings
from tacit.report.viewer import find_prompts
from tacit.rollout.worlds import InProcessPool
from tacit.runs.trajectories import add_prompts, split_sections, trajectory_record
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TERSE = WORLD.wording("terse")
CONTEXT = History(TERSE, turns=2, admissible=False, style="bare")
PANEL = Panel.of(WORLD, "test", 6)
SCENES = {task.id: TaskContext(task, WORLD, CONTEXT) for task in PANEL.tasks}


def play(context):
    policy = ScriptedPolicy(stumble_through_countdown)
    return evaluate(PANEL, Rules(Sampling(max_tokens=64), 8), InProcessPool(WORLD.make), context, policy)[1]


@pytest.fixture(scope="module")
def played():
    return play(CONTEXT)


@pytest.mark.parametrize("context", [CONTEXT, StateBlock(TERSE, WORLD.tracker)], ids=["history", "state block"])
def test_prompts_written_anew_are_the_ones_that_were_read(context):
    played = play(context)
    for trajectory in played:
        scene = replace(SCENES[trajectory.task.id], context=context)
        told, source = find_prompts(trajectory_record(trajectory), lambda _, scene=scene: scene)
        assert told == [split_sections(step.prompt) for step in trajectory.steps] and "rendered again" in source
    assert max(len(t.steps) for t in played) > 3, "long enough for history to be left out"
    assert any(not step.effective for t in played for step in t.steps), "what was refused is played again too"


def test_recorded_prompts_need_no_world(played):
    records = [trajectory_record(trajectory) for trajectory in played]
    add_prompts(records, played)
    for record, trajectory in zip(records, played, strict=True):
        told, source = find_prompts(record, lambda _: pytest.fail("the world was asked"))
        assert told == [split_sections(step.prompt) for step in trajectory.steps] and source == "as recorded"
        record["turns"][0]["prompt"] = [["now", 3]]
        assert find_prompts(record, {}.get)[0] == []


def test_a_world_that_answers_differently_claims_nothing(played):
    record = trajectory_record(played[0])
    record["turns"][1]["saw"] += " and a hat"
    told, why = find_prompts(record, SCENES.get)
    assert told == [] and "observation at step 2 differs from the recorded one" in why


def test_why_there_are_no_prompts(played):
    record = trajectory_record(played[0])
    scene = SCENES[record["task"]]
    assert "the world is not available" in find_prompts(record, {}.get)[1]
    assert "the note they contained was not recorded" in find_prompts({**record, "condition": "guided"}, SCENES.get)[1]

    def broken():
        raise RuntimeError("no simulator")

    told, why = find_prompts(record, lambda _: replace(scene, world=replace(WORLD, make=broken)))
    assert "RuntimeError: no simulator" in why and told == []


@pytest.mark.parametrize(
    "document",
    [
        {"world": "countdown", "method": "ppo", "model": "tiny", "seed": 5},
        {"world": "alfworld", "method": {"name": "constant_context", "kl": 0.5}, "evaluation": {"untrained": False}},
        {"world": "cooking", "model": "some/model", "engine": {"lora_targets": ["q_proj", "v_proj"], "device": "cpu"},
         "schedule": {"lr": 3e-5, "group_size": 4}, "sft": {"noise": 0.25}},
        {"world": "countdown", "method": {"name": "bipace", "layer": -2, "history": -1}, "families": "-x, --y z"},
    ],
)  # fmt: skip
def test_the_command_on_the_page_repeats_the_run(document):
    """Read by the real parser, it gives the settings it was made from."""
    recipe = Recipe.from_json(document)
    told = recipe.to_json()
    usual = Recipe.from_json({"world": recipe.world, "model": recipe.model, "method": recipe.method}).to_json()
    words = [word for piece in build_command(flatten_settings(told), flatten_settings(usual)) for word in piece]
    assert words[:2] == ["tacit", "train"]
    parser: Parser = make_parser(method_name(document), recipe.model)
    _, said = parser.parse(words[2:])
    again = Recipe.from_json(override({}, said))
    assert replace(again, out=recipe.out) == recipe


def test_a_sum_of_methods_is_quoted_as_it_was_named():
    told = {
        "world": "countdown",
        "model": "tiny",
        "seed": 1,
        "method": {"name": "reuserl+bipace", "weight": 0.5, "note": "a b"},
    }
    pieces = build_command(flatten_settings(told), flatten_settings({**told, "method": {"name": "reuserl+bipace"}}))
    words = " ".join(shlex.join(piece) for piece in pieces)
    assert words == "tacit train --world countdown --method reuserl+bipace --model tiny --seed 1 --weight 0.5 --note 'a b'"


def test_what_is_known_of_settings_that_are_not_ours():
    assert "unknown method" in find_world_info({"world": "countdown", "method": {"name": "gone"}}).notices[0]
    lost = find_world_info({"world": "nowhere.at:ALL", "method": {"name": "grpo"}, "model": "tiny"})
    assert not lost.scenes and lost.defaults is not None and "The world is not here" in lost.notices[0]
    assert "These settings are not this version's" in find_world_info(None).notices[0]


def test_help_says_what_it_takes(capsys):
    assert main(["report", "--help"]) == 0
    assert "RUN_OR_COMPARISON" in capsys.readouterr().out


def test_an_expert_reads_no_prompt(played):
    settings = {"world": "countdown", "model": "expert", "evaluation": {"split": "test", "tasks": 6}, "tasks": 4}
    record = trajectory_record(played[0])
    told, why = find_prompts(record, find_world_info(settings).find_scene)
    assert told == [] and why == "An expert acts on observations and reads no prompt."
