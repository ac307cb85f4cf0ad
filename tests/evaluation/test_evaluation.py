"""Panels, scores and Wilson intervals."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedPolicy, make_group, solve_countdown, stumble_through_countdown

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.core.types import StopReason
from tacit.evaluation.evaluate import SingleAgent, evaluate, play_panel
from tacit.evaluation.panels import Panel, Rules
from tacit.evaluation.scores import score_panel
from tacit.evaluation.statistics import wilson
from tacit.prompts.history import History
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

ROOT = Path(__file__).resolve().parents[2]
WORLD = get_environment("countdown")
TERSE = History(WORLD.wording("terse"), turns=1, admissible=False, style="bare")
PANEL = Panel.of(WORLD, "test", 12)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (1, 1, 0.2065, 1.0),
        (50, 100, 0.4038, 0.5962),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_against_known_values(successes, trials, low, high):
    assert wilson(successes, trials) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_contains_the_proportion_and_is_symmetric(counts):
    successes, trials = counts
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    assert (1 - high, 1 - low) == pytest.approx(wilson(trials - successes, trials))
    assert low < high


def test_panel_is_equal_in_every_process():
    code = "from tacit.worlds import get_environment; from tacit.evaluation.panels import Panel;"
    code += "p = Panel.of(get_environment('countdown'), 'test', 12); print(p.name, p.hash)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert other.stdout.split() == [PANEL.name, PANEL.hash]
    assert PANEL.name == "countdown/test/12" and len(PANEL.hash) == 16


def test_larger_panel_starts_with_the_smaller():
    assert Panel.of(WORLD, "test", 20).tasks[:12] == PANEL.tasks
    assert Panel.of(WORLD, "test", 20).hash != PANEL.hash


@pytest.mark.parametrize("field", ["world", "id", "family", "split", "goal"])
def test_any_change_of_a_task_changes_the_hash(field):
    first = replace(PANEL.tasks[0], **{field: "other"})
    assert Panel(PANEL.name, (first, *PANEL.tasks[1:])).hash != PANEL.hash


def test_hash_covers_seed_data_and_order_but_not_the_name():
    first, *rest = PANEL.tasks
    assert Panel("p", (replace(first, seed=first.seed + 1), *rest)).hash != PANEL.hash
    assert Panel("p", (replace(first, data={**first.data, "target": 1}), *rest)).hash != PANEL.hash
    assert Panel("p", (*rest, first)).hash != PANEL.hash
    assert Panel("another name", PANEL.tasks).hash == PANEL.hash
    turned = replace(first, data=dict(reversed(first.data.items())))
    assert Panel("p", (turned, *rest)).hash == PANEL.hash, "the order of keys says nothing"


def test_unknown_split_or_empty_panel_is_refused():
    with pytest.raises(TacitError, match="Did you mean 'test'"):
        Panel.of(WORLD, "tset", 3)
    with pytest.raises(TacitError, match="has no tasks on this machine"):
        Panel.of(WORLD, "test", 0)


def played(batch, seed=0, repeats=2):
    policy = ScriptedPolicy(stumble_through_countdown)
    rules = Rules(Sampling(temperature=0.4), 4, seed, repeats)
    episodes = play_panel(PANEL, rules, InProcessPool(WORLD.make), SingleAgent(TERSE, policy), batch=batch)
    return score_panel(PANEL, episodes, rules), [(t.task.id, t.seed, [s.completion.text for s in t.steps]) for t in episodes]


def test_score_does_not_depend_on_batch_size():
    whole = played(256)
    assert 0 < whole[0].successes < 24 == whole[0].episodes, "a policy that wins some and loses some"
    assert played(1) == whole == played(7)


def test_repeats_and_seeds_draw_different_episodes():
    score, episodes = played(256)
    assert played(256, repeats=1)[1] == episodes[:12], "the first pass over the panel is the same"
    assert len({seed for _, seed, _ in episodes}) == 24
    assert not {seed for _, seed, _ in played(256, seed=1)[1]} & {seed for _, seed, _ in episodes}
    assert score.panel_hash == PANEL.hash and score.panel == PANEL.name and score.sampling["temperature"] == 0.4


def test_expert_scores_one():
    policy = ScriptedPolicy(solve_countdown)
    score, _ = evaluate(PANEL, Rules(Sampling(), 30), InProcessPool(WORLD.make), TERSE, policy)
    assert score.success == 1.0 and score.score == 1.0 and score.invalid == score.ineffective == 0.0
    assert score.steps == score.success_steps and str(score) == "100.0% [75.8, 100.0] of 12 episodes"


def test_score_by_hand():
    group = make_group(
        [[2, 4], [3], [1], []],
        success=[True, False, False, False],
        valid=[[True, False], [True], [True], []],
        stops=[StopReason.SUCCESS, StopReason.STEP_LIMIT, StopReason.WORLD_ERROR, StopReason.WORLD_HANG],
    )
    score = score_panel(PANEL, group.trajectories, Rules(Sampling(), 4, seed=5))
    assert (score.episodes, score.successes, score.crashed, score.seed) == (4, 1, 2, 5)
    assert score.success == 0.25 and score.steps == 1.0 and score.success_steps == 2.0
    assert score.invalid == 0.25 and score.completion_tokens == 2.5 and score.prompt_tokens == 1.0
    written = json.loads(json.dumps(score.to_json()))
    assert written["success"] == 0.25 and written["interval"] == pytest.approx(wilson(1, 4))


def test_score_without_episodes():
    score = score_panel(PANEL, [], Rules(Sampling(), 4))
    assert score.success == 0.0 and score.interval == (0.0, 1.0) and score.steps == 0.0
