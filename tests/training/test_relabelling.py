"""Relabeling (DAgger): the policy acts, the expert labels its states, and a killed round resumes exactly."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from guessing import SAME
from scripted import ScriptedPolicy, Words, solve_countdown, stumble_through_countdown

import tacit
from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.core.seeds import derive
from tacit.core.types import Observation
from tacit.core.world import Adviser
from tacit.prompts.history import History
from tacit.report.run_page import build_stages
from tacit.rollout.worlds import InProcessPool
from tacit.runs.metrics import read_metrics
from tacit.training.demonstrations import (
    Demonstrations,
    NoisyExpert,
    check_adviser,
    demonstrate,
    load_relabeled,
    make_samples,
    play_round,
    relabel,
    save_relabeled,
)
from tacit.training.imitation import imitate_round, order
from tacit.training.settings import SupervisedSettings
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TERSE = History(WORLD.wording("terse"), turns=0, admissible=False, style="bare")
TASKS = WORLD.tasks("train", 12, 0)


def played_by(policy, tasks=TASKS, world=WORLD, context=TERSE, max_steps=12):
    return play_round(tasks, 7, context, InProcessPool(world.make), policy, Sampling(), max_steps)


def test_relabeled_turns_pair_the_policys_prompts_with_expert_actions():
    policy = ScriptedPolicy(stumble_through_countdown)
    found = relabel(WORLD, played_by(policy, max_steps=4))
    samples = make_samples(found, TERSE, policy)
    assert len(samples) == sum(len(t) for t in found.played) == len(found.turns), "every turn, of lost episodes too"
    assert any(not t.success for t in found.played) and any(step.action != advice for step, advice in found.turns)
    for prompt, completion in zip(samples.prompts, samples.completions, strict=True):
        assert policy.decode(completion) == solve_countdown(policy.decode(prompt)) and completion[-1] == 0
    prompts = [prompt for call in policy.calls for prompt, _ in call]
    assert sorted(map(policy.decode, samples.prompts)) == sorted(prompts), "what the policy read, and nothing else"


def test_relabeling_a_perfect_policy_equals_demonstrations():
    policy = ScriptedPolicy(solve_countdown)
    found = relabel(WORLD, played_by(policy))
    assert found.agreement == 1.0 and found.won == len(TASKS)
    samples = make_samples(found, TERSE, policy)
    own = [step.completion.tokens.tolist() for trajectory in found.played for step in trajectory.steps]
    assert [c.tolist() for c in samples.completions] == own
    expected = demonstrate(WORLD, TASKS, TERSE, policy, 12)
    assert [p.tolist() for p in samples.prompts] == [p.tolist() for p in expected.prompts]
    assert [c.tolist() for c in samples.completions] == [c.tolist() for c in expected.completions]


def test_agreement_is_the_share_of_equal_actions():
    policy = ScriptedPolicy(lambda prompt, seed: "hm" if " > " in prompt and seed % 2 else solve_countdown(prompt))
    found = relabel(WORLD, played_by(policy))
    same = [step.action == advice for step, advice in found.turns]
    assert 0 < sum(same) < len(same)
    assert found.agreement == pytest.approx(np.mean(same))
    assert f"{len(same)} turns of {len(TASKS)} episodes ({found.won} won)" in str(found)


@pytest.mark.parametrize("name", ["alfworld", "cooking", "textcraft", "errands"])
def test_adviser_recovers_from_actions_of_others(name):
    """Random actions are taken for some turns, some of them refused. Then the adviser acts and wins."""
    world = get_environment(name)
    won, tasks = 0, world.tasks("train", 12, 5)
    for task in tasks:
        rng, live, adviser = Random(task.id), world.make(), world.expert()(task)
        assert isinstance(adviser, Adviser)
        observation, others = live.reset(task), 1 if name == "errands" else 6
        # actions that cannot end the episode or destroy a needed object
        harmless = ("go", "open", "close", "look", "take knife", "inventory", "get", "examine")
        for turn in range(world.max_steps):
            action = adviser.act(observation)
            if turn < others:
                action = rng.choice([a for a in observation.actions if a.startswith(harmless)] + ["hm"])
                adviser.happened(action)
            transition = live.step(action)
            observation = transition.observation
            if transition.done:
                won += transition.success
                break
    assert won >= 11, f"{won} of {len(tasks)}"


def test_webshop_oracle_knows_which_option_was_clicked():
    """No page of the shop shows which option is chosen. Told of another click, the oracle asks for the remaining option;
    otherwise it would assume its own click and ask for the chosen one again."""
    shop, swapped = get_environment("webshop"), 0
    for task in shop.tasks("train", 20, 0):
        live, hero = shop.make(), shop.expert("oracle")(task)
        observation, options, clicked = live.reset(task), [f"click[{v}]" for _, v in task.data["goal"]["options"]], []
        for _ in range(shop.max_steps):
            action = hero.act(observation)
            assert action not in clicked
            other = next((o for o in options if o != action and o not in clicked), "")
            if action in options and other:
                action, swapped = other, swapped + 1
                hero.happened(action)
            clicked += [action] if action in options else []
            transition = live.step(action)
            observation = transition.observation
            if transition.done:
                break
    assert swapped > 3


def test_noise_actions_are_reported_to_the_expert():
    class Told:
        def __init__(self):
            self.actions = []

        def act(self, observation):
            return "mine"

        def happened(self, action):
            self.actions.append(action)

    hero = Told()
    player = NoisyExpert(hero, 0.5, Random(0))
    played = [player.act(Observation("here", ("other",))) for _ in range(40)]
    assert played.count("other") == len(hero.actions) > 5 and set(hero.actions) == {"other"}


@pytest.mark.parametrize(
    ("world", "expert", "remedy"),
    [
        ("searchqa", "", "show recoveries with --sft.noise"),
        ("scienceworld", "gold", "give it a `happened` method"),
        ("errands", "stranger", "choose --sft.expert resident"),
    ],
)
def test_expert_that_cannot_advise_is_refused_with_a_remedy(world, expert, remedy):
    with pytest.raises(TacitError, match=rf"cannot relabel the policy.*{remedy}"):
        check_adviser(get_environment(world), expert)


@pytest.mark.parametrize(
    "world", ["alfworld", "cooking", "countdown", "errands", "minihack", "sokoban", "textcraft", "webshop"]
)
def test_other_worlds_have_an_adviser(world):
    check_adviser(get_environment(world), "")
    check_adviser(get_environment("alfworld"), "oracle")


def test_untyped_expert_factory_is_checked_when_relabeling():
    check_adviser(SAME, "")
    policy = ScriptedPolicy(lambda *_: "a")
    context = History(SAME.wording("terse"), turns=0, style="bare")
    played = played_by(policy, SAME.tasks("train", 2, 0), SAME, context)
    with pytest.raises(TacitError, match="cannot relabel the policy"):
        relabel(SAME, played)


def test_turns_before_an_expert_error_are_used():
    class Fragile:
        def __init__(self, task):
            self.calls = 0

        def act(self, observation):
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("tired")
            return "reset"

        def happened(self, action):
            pass

    policy = ScriptedPolicy(lambda *_: "hm")
    found = relabel(replace(WORLD, experts={"fragile": Fragile}), played_by(policy, TASKS[:2], max_steps=3))
    assert len(found.turns) == 2 and [b[:19] for b in found.broken] == ["RuntimeError: tired"] * 2
    assert "in 2 the expert broke, the first: RuntimeError: tired" in str(found)
    assert make_samples(found, TERSE, policy).broken == 2
    with pytest.raises(TacitError, match=r"no turn was relabeled: .*2 turns exceed the model"):
        make_samples(found, TERSE, Words(3))


def test_round_mixes_relabeled_and_demonstrated_turns():
    def rows(first, count):
        return Demonstrations([np.array([first + i]) for i in range(count)], [np.array([0])] * count, count, count)

    settings = SupervisedSettings(steps=5, batch=8, lr=1.0, warmup=0.0, rounds=2, round_steps=4, round_share=0.25)
    assert [settings.round_begins(n) for n in (1, 2, 3)] == [5, 9, 13] and settings.all_steps == 13

    def taught(first):
        policy = ScriptedPolicy(lambda *_: "")
        steps = [step for step, _ in imitate_round(policy, rows(0, 50), rows(100, 20), settings, 3, 2, first)]
        return steps, [[int(p[0]) for p in batch.prompts] for batch, _, _ in policy.updates], [u[2] for u in policy.updates]

    steps, batches, rates = taught(0)
    assert steps == [10, 11, 12, 13] and rates[:2] == [1.0, 1.0] and 1.0 > rates[2] > rates[3] > 0
    assert all(sum(row >= 100 for row in batch) == 2 and len(batch) == 8 for batch in batches)
    expected = order(20, 0, 2, derive(3, "round", 2))
    assert [row - 100 for row in batches[0][:2]] == expected.tolist()
    assert taught(11) == (steps[2:], batches[2:], rates[2:]), "a resumed round reads on where the killed one stopped"


def test_relabeled_samples_round_trip(tmp_path):
    samples = Demonstrations([np.array([1, 2, 3]), np.array([4])], [np.array([5]), np.array([6, 7])], 9, 4, 1, 2)
    save_relabeled(samples, tmp_path / "relabelled" / "000024.npz")
    again = load_relabeled(tmp_path / "relabelled" / "000024.npz")
    assert [p.tolist() for p in again.prompts] == [[1, 2, 3], [4]]
    assert [c.tolist() for c in again.completions] == [[5], [6, 7]]
    assert (again.episodes, again.won, again.broken, again.too_long) == (9, 4, 1, 2)
    (tmp_path / "relabelled" / "000024.npz").write_bytes(b"PK damaged")
    for place in (tmp_path / "relabelled" / "000024.npz", tmp_path / "relabelled" / "000099.npz"):
        with pytest.raises(TacitError, match=f"Delete the checkpoints after sft {int(place.stem)}"):
            load_relabeled(place)


SETTINGS = {
    "world": "countdown", "model": "tiny-0.5m", "wording": "terse", "style": "bare", "admissible": False, "history": 0,
    "iterations": 0, "max_steps": 4, "checkpoint_every": 1, "tasks": 40, "seed": 3,
    "sft": {"steps": 8, "batch": 8, "tasks": 16, "rounds": 2, "round_tasks": 8, "round_steps": 16},
    "evaluation": {"tasks": 4, "max_steps": 4, "untrained": False}, "engine": {"device": "cpu", "threads": 1},
}  # fmt: skip


def numbers(run) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "at"} for record in read_metrics(run / "metrics.jsonl")]


@pytest.mark.slow
def test_resumed_run_with_rounds_equals_uninterrupted_run(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    summary = tacit.train(out=whole, **SETTINGS).summary

    def kill_at(step):
        def callback(event):
            if event.kind == "step" and event.step == step:
                raise KeyboardInterrupt

        return callback

    with pytest.raises(KeyboardInterrupt):  # the first round has begun: the last checkpoint, of step 20, is inside it
        tacit.train(out=broken, callbacks=[kill_at(21)], **SETTINGS)
    assert main(["train", "--resume", str(broken)]) == 0
    again = json.loads((broken / "summary.json").read_text())
    assert again["digest"] == summary["digest"] and numbers(broken) == numbers(whole)
    assert [(e["stage"], e["step"]) for e in again["evaluations"]] == [("sft", 8), ("sft", 24), ("sft", 40)]
    for name in ("relabel-000008.jsonl.gz", "relabel-000024.jsonl.gz"):
        assert (whole / "trajectories" / name).read_bytes() == (broken / "trajectories" / name).read_bytes()

    found = numbers(whole)
    assert [r["step"] for r in found if "relabel_agreement" in r] == [9, 25], "with the first step of a round"
    assert len(found) == 40 and all(0 <= r["relabel_success"] <= 1 for r in found if "relabel_success" in r)

    trained = [task.id for task in WORLD.tasks("train", 40, 3)]
    tasks = []
    for name in ("relabel-000008.jsonl.gz", "relabel-000024.jsonl.gz"):
        with gzip.open(whole / "trajectories" / name, "rt") as file:
            tasks += [json.loads(line)["task"] for line in file]
    assert tasks == trained[16:32], "training tasks that were not shown, none twice, and none of the panel's"

    assert main(["report", str(whole)]) == 0
    assert "relabel_agreement" in (whole / "report.html").read_text()


def test_report_charts_agreement_of_policy_and_expert():
    rounds = [{"stage": "sft", "step": 9, "relabel_agreement": 0.7}, {"stage": "sft", "step": 25, "relabel_agreement": 0.9}]
    (stage,) = build_stages(rounds, [])
    assert "Turns with the expert&#39;s action" in stage["charts"][0] and "90.0%" in stage["charts"][0]


@pytest.mark.slow
def test_rounds_without_imitation_first(tmp_path, capsys):
    """For a model that has already imitated."""
    sft = {**SETTINGS["sft"], "steps": 0, "rounds": 1, "round_steps": 3}
    summary = tacit.train(out=tmp_path / "run", **{**SETTINGS, "sft": sft}).summary
    assert [(e["stage"], e["step"]) for e in summary["evaluations"]] == [("sft", 3)]


def test_expert_that_cannot_advise_is_refused_before_writing(tmp_path, capsys):
    words = ["--world", "errands", "--model", "tiny", "--sft.steps", "5", "--sft.rounds", "1", "--sft.expert", "stranger"]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) != 0
    assert "cannot relabel the policy" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
