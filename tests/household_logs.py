"""ALFWorld logs like those a user might have: won episodes of the expert, and lost ones that stop before the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.core.types import Task
from tacit.worlds import get_environment

WORLD = get_environment("alfworld")


def episode(task: Task, lost: bool = False, **more: Any) -> dict[str, Any]:
    """An episode of the expert. A lost one stops before the last action."""
    world, expert = WORLD.make(), WORLD.expert()(task)
    observation, turns, won = world.reset(task), [], False
    while not won and len(turns) < 50:
        action = expert.act(observation)
        turns.append({"saw": observation.text, "action": action})
        transition = world.step(action)
        observation, won = transition.observation, transition.success
    if lost:
        return {
            "goal": task.goal,
            "success": False,
            "turns": turns[:-1],
            "saw": turns[-1]["saw"],
            "family": task.family,
            **more,
        }
    return {"goal": task.goal, "success": won, "turns": turns, "saw": observation.text, "family": task.family, **more}


def household(count: int, families: Sequence[str] = (), lost: int = 0) -> list[dict[str, Any]]:
    tasks = WORLD.tasks_of("train", count, 0, families)
    return [episode(task) for task in tasks] + [episode(task, lost=True) for task in tasks[:lost]]


def as_react(line: dict[str, Any]) -> dict[str, Any]:
    """The same as a ReAct transcript, with thoughts that must not be imitated."""
    text = ""
    for turn in line["turns"]:
        text += f"Observation: {turn['saw']}\nThought: perhaps this helps\nAction: {turn['action']}\n"
    kept = {name: line[name] for name in ("goal", "success", "family") if name in line}
    return {**kept, "text": text + f"Observation: {line['saw']}"}


def as_messages(line: dict[str, Any]) -> dict[str, Any]:
    """The same as a conversation."""
    messages = [{"role": "system", "content": "You are a household robot."}]
    for turn in line["turns"]:
        messages.append({"role": "user", "content": turn["saw"]})
        messages.append({"role": "assistant", "content": f"<think>hm</think><action>{turn['action']}</action>"})
    messages.append({"role": "user", "content": line["saw"]})
    kept = {name: line[name] for name in ("goal", "success", "family") if name in line}
    return {**kept, "messages": messages}


def write_lines(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8")
    return path
