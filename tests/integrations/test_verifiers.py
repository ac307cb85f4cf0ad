"""The verifiers integration with the real package: our worlds in its rollouts, and its environments as worlds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("verifiers.envs.multiturn_env", reason="needs the extra verifiers: 0.1.14 to 0.3.0, with MultiTurnEnv")
import verifiers as vf
from datasets import Dataset
from verifiers.types import UserMessage

from tacit.core.errors import TacitError
from tacit.core.types import Observation
from tacit.integrations.verifiers import QueuedClient, TacitMultiTurnEnv, verifiers_environment
from tacit.worlds import get_environment

ROOT = Path(__file__).resolve().parents[2]
HOUSEHOLD = get_environment("alfworld")


class Scripted(QueuedClient):
    """A fake model that checks the prompt and answers with the expert's action in our format."""

    def __init__(self, expert, world, task):
        super().__init__()
        self.expert, self.world = expert, world
        self.observation = world.reset(task)
        self.prompts = []

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **more):
        self.prompts.append(prompt)
        assert self.observation.actions[0] in prompt[-1].content and len(prompt) == 2 * len(self.prompts) - 1
        action = self.expert.act(self.observation)
        self.observation = self.world.step(action).observation
        return f"<think>so</think><action>{action}</action>"


def rolled_out(env, row, model):
    return asyncio.run(env.run_rollout(row, model, "scripted", {}))


def row_of(env, number, of="train"):
    rows = env.get_dataset() if of == "train" else env.get_eval_dataset()
    return {"prompt": rows[number]["prompt"], "answer": "", "info": rows[number]["info"], "example_id": number}


@pytest.mark.parametrize("of", ["train", "test"])
def test_expert_wins_in_a_verifiers_rollout(of):
    env = TacitMultiTurnEnv("alfworld", tasks=4, eval_tasks=3)
    task = HOUSEHOLD.tasks_of("train" if of == "train" else "unseen", 4 if of == "train" else 3, 0)[2]
    model = Scripted(HOUSEHOLD.expert()(task), HOUSEHOLD.make(), task)
    output = rolled_out(env, row_of(env, 2, of), model)
    assert output["error"] is None and output["reward"] == 1.0
    metrics = output["metrics"]
    assert metrics["success"] == metrics["score"] == 1.0 and metrics["invalid"] == 0.0
    assert metrics["turns"] == len(model.prompts) == metrics["num_turns"]
    assert task.goal in model.prompts[0][-1].content and "admissible actions" in model.prompts[0][-1].content
    assert not env.episodes, "its world is closed when a rollout is over"


class Mumbling(QueuedClient):
    async def get_native_response(self, *args, **more):
        return "I would rather look"


def test_invalid_actions_are_counted_and_steps_are_limited():
    env = TacitMultiTurnEnv("alfworld", tasks=2, max_steps=3)
    output = rolled_out(env, row_of(env, 0), Mumbling())
    assert output["metrics"]["invalid"] == output["metrics"]["turns"] == 3.0 and output["reward"] == 0.0


def test_concurrent_rollouts_work_with_evaluate():
    env = TacitMultiTurnEnv("countdown", tasks=3, eval_tasks=6, max_steps=2)
    results = asyncio.run(env.evaluate(Mumbling(), "mumbling", num_examples=6, rollouts_per_example=2))
    assert len(results["outputs"]) == 12 and all(o["metrics"]["turns"] == 2.0 and not o["error"] for o in results["outputs"])


def test_tasks_are_made_once_for_all_rollouts():
    calls = []
    counted = replace(HOUSEHOLD, tasks=lambda *arguments: calls.append(arguments) or HOUSEHOLD.tasks(*arguments))
    env = TacitMultiTurnEnv(counted, tasks=3, eval_tasks=3, max_steps=2)
    before = len(calls)
    asyncio.run(env.evaluate(Mumbling(), "mumbling", num_examples=3, rollouts_per_example=2))
    assert before and len(calls) == before


class Sums(vf.MultiTurnEnv):
    """A third-party environment: asks for a sum, says whether an answer is too low, up to three times."""

    def __init__(self, broken=False, with_eval=True):
        rows = [{"prompt": [{"role": "user", "content": f"{n} + 1?"}], "answer": str(n + 1)} for n in range(8)]
        more = {"eval_dataset": Dataset.from_list(rows[6:])} if with_eval else {}
        rubric = vf.Rubric(funcs=[self.right])
        super().__init__(dataset=Dataset.from_list(rows[:6]), rubric=rubric, max_turns=3, system_prompt="Add up.", **more)
        self.broken = broken

    async def right(self, completion, answer):
        return float(any(m["role"] == "assistant" and m["content"] == answer for m in completion))

    async def env_response(self, messages, state, **more):
        if self.broken:
            raise vf.Error("out of order")
        text, right = messages[-1].content, state["answer"]
        if text == right:
            state["final_env_response"] = [UserMessage(content="Right.")]
            return state["final_env_response"]
        return [UserMessage(content="Too low." if text < right else "Too high.")]


def play(world, task, actions):
    seen, transitions = world.reset(task), []
    for action in actions:
        transitions.append(world.step(action))
        if transitions[-1].done:
            break
    return seen, transitions


def test_verifiers_environment_becomes_a_world():
    environment = verifiers_environment("sums", Sums)
    assert environment.splits == ("train", "test") and environment.published == {"train": 6, "test": 2}
    assert [t.id for t in environment.tasks("train", 6, 0)] == [
        t.id for t in verifiers_environment("sums", Sums).tasks("train", 6, 0)
    ]
    world = environment.make()
    task = next(t for t in environment.tasks("train", 6, 0) if "3 + 1" in t.goal)
    assert task.goal == "Add up.\n\n3 + 1?"
    seen, transitions = play(world, task, ["2", "4", "never said"])
    assert seen == Observation("Begin.") and transitions[0].observation.text == "Too low." and not transitions[0].done
    assert len(transitions) == 2 and transitions[1].done and transitions[1].success and transitions[1].score == 1.0
    assert transitions[1].observation.text == "Right."
    _, lost = play(world, task, ["9", "9", "9", "9"])
    assert len(lost) == 3 and lost[-1].done and not lost[-1].success and lost[-1].reward == 0.0
    play(world, task, ["2"])  # left in the middle
    assert play(world, task, ["4"])[1][0].success
    world.close()
    assert world.thread is None


def test_missing_eval_dataset_means_no_test_split_and_failures_are_raised():
    environment = verifiers_environment("sums", lambda: Sums(with_eval=False))
    assert environment.splits == ("train",) and environment.split_to_measure() == "train"
    broken = verifiers_environment("sums", lambda: Sums(broken=True)).make()
    with pytest.raises(RuntimeError, match="the environment failed: "):
        play(broken, verifiers_environment("sums", Sums).tasks("train", 1, 0)[0], ["x", "y"])
    broken.close()


def test_single_turn_environment_becomes_a_world():
    rows = [{"prompt": [{"role": "user", "content": "Say hi"}], "answer": "hi"}]

    def greets(completion, answer):
        return float(completion[-1]["content"] == answer)

    environment = verifiers_environment(
        "hi", lambda: vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[greets]))
    )
    (task,) = environment.tasks("train", 1, 0)
    world = environment.make()
    assert play(world, task, ["hi"])[1][0].success and not play(world, task, ["ho"])[1][0].success


def test_reasoning_gym_environment_becomes_a_world():
    """The installed Reasoning Gym integration of verifiers."""
    pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym")
    from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv

    make = partial(ReasoningGymEnv, "chain_sum", num_train_examples=20, num_eval_examples=8)
    environment = verifiers_environment("chains", make)
    assert environment.splits == ("train", "test") and environment.published == {"train": 20, "test": 8}
    task = environment.tasks("test", 8, 0)[0]
    right = make().rg_dataset[int(task.data["row"]["answer"])]["answer"]
    world = environment.make()
    assert not play(world, task, ["<answer>no number</answer>"])[1][-1].success
    won = play(world, task, [f"<answer>{right}</answer>"])[1][-1]
    assert won.done and won.success and won.score == 1.0
    world.close()


def test_unknown_splits_are_refused():
    with pytest.raises(TacitError, match="unknown split 'tset'"):
        verifiers_environment("sums", Sums).tasks("tset", 1, 0)
    with pytest.raises(TacitError, match="unknown split 'unsen'"):
        TacitMultiTurnEnv("alfworld", split="unsen")


def test_example_script_runs():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "verifiers_integration.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "reward in verifiers' rollout: 0.0 after 3 turns" in done.stdout and "won here: True" in done.stdout
