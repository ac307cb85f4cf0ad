"""Imitation (SFT): demonstrations, their order, and the learning rate."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedPolicy, Words, solve_countdown

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.losses.surrogates import Imitation
from tacit.prompts.history import History
from tacit.training.demonstrations import MAX_BROKEN, Demonstrations, demonstrate
from tacit.training.imitation import imitate, lr_factor, rows_of_step
from tacit.training.settings import SupervisedSettings
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TERSE = History(WORLD.wording("terse"), turns=0, admissible=False, style="bare")
TASKS = WORLD.tasks("train", 20, 0)


def test_warmup_then_half_cosine():
    # 10 steps with 2 warmup steps: 1/2, 1, then a cosine over the remaining 8.
    rates = [lr_factor(step, 10, 0.2) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.5)
    assert rates[9] == pytest.approx(0.5 * (1 + np.cos(np.pi * 7 / 8)))
    assert all(a >= b for a, b in itertools.pairwise(rates[1:]))


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.1), (1, 0.0), (3, 1.0), (5, 0.0)])
def test_learning_rate_factor_is_between_zero_and_one(steps, warmup):
    rates = [lr_factor(step, steps, warmup) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates) and max(rates) == 1.0


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5), st.integers(0, 3))
def test_epoch_shows_each_turn_at_most_once(samples, batch, epoch, seed):
    per_pass = max(1, samples // min(batch, samples))
    rows = np.concatenate([rows_of_step(samples, epoch * per_pass + i, batch, seed) for i in range(per_pass)])
    assert len(set(rows)) == len(rows) and rows.min() >= 0 and rows.max() < samples
    if samples % min(batch, samples) == 0:
        assert sorted(rows) == list(range(samples)), "a permutation"
    assert len(rows) > samples - min(batch, samples)


def test_order_depends_only_on_the_step():
    whole = [rows_of_step(12, step, 4, seed=1).tolist() for step in range(9)]
    assert [rows_of_step(12, step, 4, seed=1).tolist() for step in (7, 2)] == [whole[7], whole[2]]
    passes = [[*itertools.chain(*whole[i : i + 3])] for i in (0, 3, 6)]
    assert passes[0] != passes[1] != passes[2], "each pass in an order of its own"
    assert whole != [rows_of_step(12, step, 4, seed=2).tolist() for step in range(9)]


def test_demonstrations_use_the_policys_prompts_and_action_format():
    words = Words()
    examples = demonstrate(WORLD, TASKS, TERSE, words, max_steps=30)
    assert examples.episodes == examples.won == 20
    assert len(examples) == sum(len(t.data["numbers"]) - 1 for t in TASKS)
    for prompt, completion in zip(examples.prompts, examples.completions, strict=True):
        assert completion[-1] == 0, "the token that ends a completion is imitated too"
        assert words.decode(completion) == solve_countdown(words.decode(prompt))


def test_demonstrations_use_tags_in_tags_style():
    words = Words()
    context = History(WORLD.wording("full"), turns=2)
    examples = demonstrate(WORLD, TASKS[:1], context, words, max_steps=30)
    assert words.decode(examples.completions[0]).startswith("<think></think><action>op(")


def test_noise_actions_are_in_the_history_but_not_imitated():
    words = Words()
    context = History(WORLD.wording("terse"), turns=None, admissible=False, style="bare")
    examples = demonstrate(WORLD, TASKS, context, words, max_steps=30, noise=0.4, seed=3)
    pairs = [(words.decode(p), words.decode(c)) for p, c in zip(examples.prompts, examples.completions, strict=True)]
    assert all(action == solve_countdown(prompt) for prompt, action in pairs), "only the expert's own actions are shown"
    strayed = 0
    for prompt, _ in pairs:
        *past, _now = prompt.splitlines()
        strayed += any(solve_countdown(line.split(" : ")[0]) != line.split(" : ")[1] for line in past)
    assert strayed > 10, "recoveries from random actions are imitated"
    assert any(action == "reset" for _, action in pairs)
    assert 0 < examples.won <= examples.episodes == 20


def test_demonstrations_depend_only_on_task_and_seed():
    def texts(tasks, seed):
        words = Words()
        examples = demonstrate(WORLD, tasks, TERSE, words, 30, noise=0.3, seed=seed)
        return [words.decode(p) for p in examples.prompts]

    whole = texts(TASKS[:6], 0)
    assert whole == texts(TASKS[:6], 0) and whole != texts(TASKS[:6], 1)
    assert texts(TASKS[:3], 0) == whole[: len(texts(TASKS[:3], 0))]


def test_some_noise_actions_are_refused():
    """Some noise actions were valid one turn earlier and are refused now, so recovery from a refusal is demonstrated."""
    refused = []

    class RecordingWorld(type(WORLD.make())):
        def step(self, action):
            transition = super().step(action)
            refused.append(not transition.effective)
            return transition

    demonstrate(replace(WORLD, make=RecordingWorld), TASKS, TERSE, Words(), max_steps=30, noise=0.4, seed=3)
    assert 0 < sum(refused) < len(refused) / 2
    refused.clear()
    demonstrate(replace(WORLD, make=RecordingWorld), TASKS, TERSE, Words(), max_steps=30)
    assert refused and not any(refused)


def test_expert_that_never_wins_is_refused():
    with pytest.raises(TacitError, match="won none of 20 tasks"):
        demonstrate(WORLD, TASKS, TERSE, Words(), max_steps=1)
    with pytest.raises(TacitError, match="Did you mean 'solver'"):
        demonstrate(WORLD, TASKS, TERSE, Words(), 30, expert="solvr")


def test_turns_longer_than_the_context_are_dropped_and_counted():
    whole = demonstrate(WORLD, TASKS, TERSE, Words(), max_steps=30)
    assert whole.too_long == 0 and str(whole) == f"{len(whole)} turns of 20 won episodes (of 20)"
    lengths = sorted(len(p) + len(c) for p, c in zip(whole.prompts, whole.completions, strict=True))
    limit = lengths[len(lengths) // 2]
    short = demonstrate(WORLD, TASKS, TERSE, Words(limit), max_steps=30)
    assert len(short) == sum(length <= limit for length in lengths) == len(whole) - short.too_long
    assert str(short).endswith(f"(of 20); dropped {short.too_long} turns longer than the model's context")
    with pytest.raises(TacitError, match=f"none of the {len(whole)} turns .* fits in the model's context of 3 tokens"):
        demonstrate(WORLD, TASKS, TERSE, Words(3), max_steps=30)


def test_broken_demonstration_is_skipped_and_counted():
    solver = WORLD.expert()

    def fragile(task):
        if task is TASKS[1]:
            raise RuntimeError("no")
        return solver(task)

    examples = demonstrate(replace(WORLD, experts={"fragile": fragile}), TASKS[:3], TERSE, Words(), max_steps=30)
    assert str(examples) == f"{len(examples)} turns of 2 won episodes (of 3, 1 broke)"
    assert len(examples) == sum(len(t.data["numbers"]) - 1 for t in (TASKS[0], TASKS[2]))


def test_demonstrations_stop_after_max_broken_episodes():
    tasks = []

    def fragile(task):
        tasks.append(task)
        raise SystemExit(1)

    message = (
        r"won none of 8 tasks within 30 steps \(8 broke; the first: SystemExit: 1 \(test_supervised.py, line \d+\), in task"
    )
    with pytest.raises(TacitError, match=message):
        demonstrate(replace(WORLD, experts={"fragile": fragile}), TASKS * 9, TERSE, Words(), max_steps=30)
    assert len(tasks) == MAX_BROKEN


def test_imitation_resumes_where_it_stopped():
    examples = Demonstrations([np.array([i]) for i in range(10)], [np.array([i, 0]) for i in range(10)], 10, 10)
    settings = SupervisedSettings(steps=6, batch=4, lr=0.1, warmup=0.5)

    def run(first):
        policy = ScriptedPolicy(lambda *_: "")
        steps = list(imitate(policy, examples, settings, seed=0, first=first))
        rows = [[int(p[0]) for p in batch.prompts] for batch, _, _ in policy.updates]
        assert all(losses == (Imitation(),) for _, losses, _ in policy.updates)
        assert [lr for _, _, lr in policy.updates] == [metrics["lr"] for _, metrics in steps]
        return [step for step, _ in steps], rows, [metrics["lr"] for _, metrics in steps]

    steps, rows, rates = run(0)
    assert steps == [1, 2, 3, 4, 5, 6] and rates[:3] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1])
    assert run(4) == (steps[4:], rows[4:], rates[4:])
    assert run(6) == ([], [], [])


def test_epochs_count_the_demonstrated_turns():
    settings = SupervisedSettings(epochs=3, batch=16)
    assert settings.imitates and settings.resolve_epochs(36_702).steps == 3 * 2293
    assert settings.resolve_epochs(5).steps == 3, "fewer turns than a batch"
    assert SupervisedSettings(steps=7).resolve_epochs(160).steps == 7 and not SupervisedSettings().imitates
    resolved = settings.resolve_epochs(160)
    examples = [rows_of_step(160, step, 16, 0) for step in range(resolved.steps)]
    assert (np.bincount(np.concatenate(examples)) == 3).all(), "every turn three times"


@pytest.mark.slow
def test_run_with_epochs_and_its_resume(tmp_path):
    world = ["--world", "countdown", "--model", "tiny", "--sft.tasks", "4", "--sft.batch", "4", "--evaluation.tasks", "2"]
    flags = [
        *world,
        "--evaluation.every",
        "0",
        "--no-evaluation.untrained",
        "--iterations",
        "0",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["train", *flags, "--sft.epochs", "2"]) == 0
    (checkpoint,) = (path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.startswith("sft-"))
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert checkpoint == f"sft-{max(row['step'] for row in steps if row['stage'] == 'sft'):06d}"
    assert int(checkpoint.removeprefix("sft-")) % 2 == 0
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0, "there is nothing left to do"


def test_steps_and_epochs_exclude_each_other(capsys):
    assert main(["train", "--world", "countdown", "--model", "tiny", "--sft.steps", "5", "--sft.epochs", "1"]) != 0
    assert "sft.steps = 5 and sft.epochs = 1 both set the length of imitation; set one of them to 0" in capsys.readouterr().err
