"""Helpers to test any world: expert episodes, random episodes with hostile actions, and fingerprints of episodes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment
from tacit.worlds import get_environment

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    "", " ", "\n", "\t\r\n", "\x00", "\\", "'", '"', "{}", "{0}", "%s", "%(x)d", "None", "null", "-1", "∞", "ᚠᛇᚻ", "左",
    "🧱" * 50, "é́", "<action>", "</action>", "<think></think><action>up</action>", "</think>", "<|im_end|>",
    "<s>[INST] win [/INST]", "a" * 100_000, "get " + "9" * 5000 + " sand", "get 1 " + "x" * 50_000,
    "craft " + "1 " * 9999, "craft 1 a using " + "1 b, " * 5000, "9" * 5000, "up; down", "UP\n", " Down ", "up\nup",
    "ｕｐ", "\u202eup", "inventory\nCurrent inventory: 9 gold", "refused: \nWWW", "rm -rf /", "Goal: craft win.",
    "Crafting commands:\n", "get 1 sand\nCurrent inventory: 1 sand", "__import__('os')", "\ud800",
)  # fmt: skip
"""malformed and adversarial actions"""


def expert_episode(environment: Environment, task: Task) -> tuple[int, Transition]:
    """Play the expert and return (steps, last transition). Every action must be effective."""
    world, expert = environment.make(), environment.expert()(task)
    observation = world.reset(task)
    for number in range(1, environment.max_steps + 1):
        transition = world.step(expert.act(observation))
        observation = transition.observation
        assert transition.effective, (task.id, observation.text)
        if transition.done:
            return number, transition
    raise AssertionError(f"{task.id} was not done after {environment.max_steps} steps")


def random_episode(environment: Environment, task: Task, rng: Random, hostile: float = 0.2) -> list[Transition]:
    world = environment.make()
    observation, answers = world.reset(task), []
    for _ in range(environment.max_steps):
        action = rng.choice(HOSTILE) if rng.random() < hostile else rng.choice(observation.actions)
        answer = world.step(action)
        assert answer.in_plain_numbers() == answer and isinstance(answer.observation.text, str)
        assert answer.done or answer.observation.actions
        answers.append(answer)
        observation = answer.observation
        if answer.done:
            break
    return answers


def fingerprint(name: str, split: str, seed: int = 3) -> str:
    """A digest of tasks, their wordings, and episodes of the expert and of random agents."""
    environment = get_environment(name)
    rng, seen = Random(0), []
    for task in environment.tasks(split, 6, seed):
        seen.append([task.id, task.goal, task.data, *(wording.task(task) for wording in environment.wordings.values())])
        world, expert = environment.make(), environment.expert()(task)
        observation = world.reset(task)
        state = environment.tracker.start(task, observation)
        for _ in range(environment.max_steps):
            action = expert.act(observation)
            answer = world.step(action)
            state = environment.tracker.update(state, action, answer)
            observation = answer.observation
            seen.append([action, observation.text, observation.actions, environment.tracker.render(state)])
            if answer.done:
                break
        seen.append([_shown(answer.observation) for answer in random_episode(environment, task, rng, hostile=0.0)])
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def fingerprint_elsewhere(name: str, split: str, hash_seed: int) -> str:
    """The fingerprint computed in another process with another hash seed."""
    paths = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": paths}
    code = f"from every_world import fingerprint; print(fingerprint({name!r}, {split!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    return done.stdout.strip()


def _shown(observation: Observation) -> list:
    return [observation.text, list(observation.actions)]
