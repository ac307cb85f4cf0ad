"""Recorded prompts on the page, and the command that repeats the run."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from scripted import ScriptedPolicy, stumble_through_countdown

from tacit.cli.main import main
from tacit.cli.train import make_parser
from tacit.config.flags import Parser
from tacit.config.recipe import Recipe, method_name, override
from tacit.config.values import flatten
from tacit.core.protocols import Sampling
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Panel, Rules
from tacit.prompts.history import History
from tacit.report.run_files import find_defaults
from tacit.report.run_page import build_command
from tacit.report.sections import embed_episodes
from tacit.rollout.worlds import InProcessPool
from tacit.runs.trajectories import add_prompts, split_sections, trajectory_record
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TERSE = WORLD.wording("terse")
CONTEXT = History(TERSE, turns=2, admissible=False, style="bare")
PANEL = Panel.of(WORLD, "test", 6)
POLICY = ScriptedPolicy(stumble_through_countdown)


def test_recorded_prompts_are_embedded_and_broken_ones_are_not():
    played = evaluate(PANEL, Rules(Sampling(max_tokens=64), 8), InProcessPool(WORLD.make), CONTEXT, POLICY)[1]
    records = [trajectory_record(trajectory) for trajectory in played]
    add_prompts(records, played)
    records[1]["turns"][0]["prompt"] = [["now", 3]]
    data = embed_episodes([("one", record) for record in records])
    for i, (episode, trajectory) in enumerate(zip(data["episodes"], played, strict=True)):
        if i == 1:
            assert episode["prompts"] == "The prompts were not recorded." and "prompt" not in episode["turns"][0]
            continue
        sections = [[[name, data["texts"][text]] for name, text in turn["prompt"]] for turn in episode["turns"]]
        assert sections == [split_sections(step.prompt) for step in trajectory.steps] and episode["prompts"] == "as recorded"


@pytest.mark.parametrize(
    "document",
    [
        {"world": "countdown", "method": "ppo", "model": "tiny", "seed": 5},
        {"world": "alfworld", "method": {"name": "constant_context", "kl": 0.5}, "evaluation": {"untrained": False}},
        {"world": "cooking", "model": "some/model", "engine": {"lora_targets": ["q_proj", "v_proj"], "device": "cpu"},
         "schedule": {"lr": 3e-5, "group_size": 4}, "sft": {"noise": 0.25}},
        {"world": "countdown", "method": {"name": "bipace", "layer": -2}, "prompt": {"history": -1}, "families": "-x, --y z"},
    ],
)  # fmt: skip
def test_command_on_the_page_repeats_the_run(document):
    """Parsed by the real parser, the command gives the run's settings."""
    recipe = Recipe.from_json(document)
    settings = recipe.to_json()
    usual = Recipe.from_json({"world": recipe.world, "model": recipe.model, "method": recipe.method}).to_json()
    words = [word for piece in build_command(flatten(settings), flatten(usual)) for word in piece]
    assert words[:2] == ["tacit", "train"]
    parser: Parser = make_parser(method_name(document), recipe.model)
    _, overrides = parser.parse(words[2:])
    again = Recipe.from_json(override({}, overrides))
    assert replace(again, out=recipe.out) == recipe


def test_combined_methods_are_quoted_as_named():
    settings = {
        "world": "countdown",
        "model": "tiny",
        "seed": 1,
        "method": {"name": "reuserl+bipace", "weight": 0.5, "note": "a b"},
    }
    pieces = build_command(flatten(settings), flatten({**settings, "method": {"name": "reuserl+bipace"}}))
    words = " ".join(shlex.join(piece) for piece in pieces)
    assert words == "tacit train --world countdown --method reuserl+bipace --model tiny --seed 1 --weight 0.5 --note 'a b'"


def test_unknown_settings_are_reported():
    assert "unknown method" in find_defaults({"world": "countdown", "method": {"name": "gone"}})[1][0]
    assert find_defaults({"world": "nowhere.at:ALL", "method": {"name": "grpo"}, "model": "tiny"})[0] is not None
    assert "This version cannot read these settings" in find_defaults(None)[1][0]


def test_report_help(capsys):
    assert main(["report", "--help"]) == 0
    assert "RUN_OR_COMPARISON" in capsys.readouterr().out
