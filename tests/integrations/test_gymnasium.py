"""The Gymnasium integration with the real package: our worlds as Gymnasium environments, and the reverse."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gymnasium")
import gymnasium
from gymnasium.utils.env_checker import check_env
from text_game import Guess

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.integrations.gymnasium import GymnasiumWorld, TacitEnv, gymnasium_environment, register
from tacit.worlds import get_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("world", ["countdown", "alfworld", "cooking"])
def test_env_checker_reports_no_warnings(world, recwarn):
    check_env(TacitEnv(world, tasks=3, max_steps=5), skip_render_check=True)
    assert not [w.message for w in recwarn if "gymnasium" in str(w.filename)]


def test_expert_wins_through_gymnasium_with_the_same_observations():
    environment, env = get_environment("alfworld"), TacitEnv("alfworld", split="unseen", tasks=4)
    for number in range(4):
        text, info = env.reset(options={"task": number})
        task = env.episode.task
        assert info["goal"] == task.goal and text.startswith(task.goal) and info["task"] == task.id
        expert, world = environment.expert()(task), environment.make()
        observation = world.reset(task)
        assert text.endswith(observation.text) and info["admissible_actions"] == list(observation.actions)
        total, over = 0.0, False
        while not over:
            action = expert.act(observation)
            text, reward, terminated, truncated, info = env.step(action)
            transition = world.step(action)
            observation = transition.observation
            assert (text, terminated, info["admissible_actions"]) == (
                observation.text,
                transition.done,
                list(observation.actions),
            )
            total, over = total + reward, terminated or truncated
        assert terminated and info["success"] and info["score"] == 1.0 and total == 1.0


def test_seed_chooses_a_task_and_splits_are_disjoint():
    one, other = TacitEnv("cooking", tasks=50), TacitEnv("cooking", tasks=50)
    assert [one.reset(seed=s)[1]["task"] for s in range(9)] == [other.reset(seed=s)[1]["task"] for s in range(9)]
    drawn = {one.reset()[1]["task"] for _ in range(20)}
    assert len(drawn) > 5
    test = TacitEnv("cooking", split="test", tasks=50)
    assert not drawn & {test.reset()[1]["task"] for _ in range(20)}


def test_step_limit_truncates_and_later_steps_are_refused():
    env = TacitEnv("alfworld", max_steps=2, tasks=2)
    env.reset(seed=0)
    assert env.step("look")[2:4] == (False, False)
    assert env.step("look")[2:4] == (False, True)
    with pytest.raises(TacitError, match="the episode has ended"):
        env.step("look")


def test_rewards_follow_the_pays_setting():
    steps, score = TacitEnv("cooking", tasks=1), TacitEnv("cooking", tasks=1, pays="score")
    expert = get_environment("cooking").expert()(steps.episode.tasks[0])
    world = get_environment("cooking").make()
    observation, rewards = world.reset(steps.episode.tasks[0]), []
    steps.reset(seed=0)
    score.reset(seed=0)
    over = False
    while not over:
        action = expert.act(observation)
        observation = world.step(action).observation
        a, b = steps.step(action), score.step(action)
        rewards.append((a[1], b[1]))
        over = a[2]
    assert sum(p for p, _ in rewards) == pytest.approx(1.0) and [p for _, p in rewards] == [0.0] * (len(rewards) - 1) + [1.0]
    with pytest.raises(TacitError, match="world 'alfworld' has no step rewards"):
        TacitEnv("alfworld", pays="steps", tasks=1)


def test_hostile_actions_get_a_valid_observation():
    env = TacitEnv("alfworld", tasks=1)
    env.reset(seed=1)
    for action in ("", "x" * 10_000, "\ud800", "go to\nshelf 1", "日本語"):
        text, *_ = env.step(action)
        assert env.observation_space.contains(text)


def test_worlds_are_registered_by_name():
    assert "tacit/alfworld-v0" in register() and register()
    env = gymnasium.make("tacit/alfworld-v0", split="unseen", tasks=2)
    assert env.reset(seed=3)[1]["task"].startswith("unseen/") or env.reset(seed=3)[1]["family"]
    env.close()
    batch = gymnasium.vector.SyncVectorEnv([lambda: TacitEnv("countdown", tasks=4)] * 3)
    texts, info = batch.reset(seed=0)
    assert len(texts) == 3 and all(isinstance(t, str) for t in texts) and len(info["goal"]) == 3
    batch.close()


@pytest.mark.slow
def test_env_can_use_a_wording():
    env = TacitEnv("alfworld", tasks=2, wording="terse")
    text, info = env.reset(options={"task": 1})
    wording, observation = get_environment("alfworld").wording("terse"), env.episode.environment.make().reset(env.episode.task)
    assert text == f"{info['goal']}\n{wording.now(1, observation, False)}" and text.endswith(" >")
    assert env.step("fly")[0] == "nothing happens >"
    with pytest.raises(TacitError, match="unknown wording 'tersely'"):
        TacitEnv("alfworld", wording="tersely")


def test_unknown_worlds_and_splits_are_refused():
    with pytest.raises(TacitError, match="Did you mean 'alfworld'"):
        TacitEnv("alfwrld")
    with pytest.raises(TacitError, match="unknown split 'unsen'"):
        TacitEnv("alfworld", split="unsen")


WORLD = gymnasium_environment("guess", Guess, "Find the number.", max_steps=8)


def play(world, task, actions):
    seen = [world.reset(task).text]
    transitions = []
    for action in actions:
        transitions.append(world.step(action))
        if transitions[-1].done:
            break
    return seen, transitions


def test_gymnasium_env_becomes_a_world():
    world = pickle.loads(pickle.dumps(WORLD.make))()
    (task,) = WORLD.tasks("train", 1, 0)
    seen, transitions = play(world, task, [str(n) for n in range(1, 9)])
    again = play(GymnasiumWorld(Guess), task, [str(n) for n in range(1, 9)])
    assert (seen, transitions) == again and seen == ["Guess from 1 to 20."]
    secret = next(t for t in (Task("guess", "", "", "", 0, "", {"seed": n}) for n in range(50)) if _secret(t) == 3)
    _, won = play(world, secret, ["1", "x", "3"])
    assert won[-1].success and won[-1].done and won[-1].score == 1.0 and [t.reward for t in won] == [0.0, -0.1, 1.0]
    _, lost = play(world, secret, ["20"] * 9)
    assert len(lost) == 8 and lost[-1].done and not lost[-1].success and lost[-1].label == "truncated"
    world.close()


def _secret(task):
    env = Guess()
    env.reset(seed=task.data["seed"])
    return env.secret


def test_train_and_test_never_share_a_seed():
    train, test = ({t.data["seed"] for t in WORLD.tasks(split, 5000, 1)} for split in ("train", "test"))
    assert len(train) == len(test) == 5000 and not train & test


def test_round_trip_through_gymnasium_is_the_same_world():
    """ALFWorld as a Gymnasium environment, converted back to a world: same texts, actions, rewards and end."""
    household = get_environment("alfworld")
    back = gymnasium_environment("household", lambda: TacitEnv("alfworld", tasks=5, goal_in_text=False), "…")
    world = back.make()
    for task in back.tasks("test", 3, 0):
        observation = world.reset(task)
        ours = world.env.episode.task
        expert, direct = household.expert()(ours), household.make()
        assert observation == direct.reset(ours)
        done = False
        while not done:
            action = expert.act(observation)
            mine, theirs = direct.step(action), world.step(action)
            assert (theirs.observation, theirs.done, theirs.success) == (mine.observation, mine.done, mine.success)
            observation, done = theirs.observation, theirs.done
        assert theirs.success and theirs.score == 1.0


def test_env_without_text_is_refused():
    with pytest.raises(TacitError, match="'cart' is not a text environment"):
        gymnasium_environment("cart", lambda: gymnasium.make("CartPole-v1"), "Balance.")


def test_missing_package_is_reported_with_the_remedy():
    code = "import sys; sys.modules['gymnasium'] = None\nimport tacit.integrations.gymnasium"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "this integration needs the `gymnasium` package: `pip install 'tacit-agents[gymnasium]'`" in done.stderr


def test_example_script_runs():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "gymnasium_integration.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "won through Gymnasium: True" in done.stdout and "won here: True" in done.stdout
