"""Episodes as compact JSON a person can read, and back: the one form in which runs and evaluations keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit.core.types import Completion, Condition, Observation, Prompt, Step, StopReason, Task, Trajectory


def trajectory_record(trajectory: Trajectory) -> dict[str, Any]:
    """One line per episode; a turn is what was seen, what was written, and what came of it."""
    return {
        "task": trajectory.task.id,
        "family": trajectory.task.family,
        "goal": trajectory.task.goal,
        "success": trajectory.success,
        "score": round(trajectory.score, 4),
        "stop": trajectory.stop.value,
        "detail": trajectory.detail,
        "condition": trajectory.condition.name,
        "seed": trajectory.seed,
        "turns": [
            {
                "saw": step.observation.text,
                "wrote": step.completion.text,
                "action": step.action,
                "valid": step.valid,
                "effective": step.effective,
                "prompt_tokens": len(step.prompt_tokens),
                "tokens": len(step.completion.tokens),
                "logprob": round(float(step.completion.logprobs.sum()), 3),
                **({"label": step.label} if step.label else {}),
            }
            for step in trajectory.steps
        ],
        "saw": trajectory.final.text,
    }


def trajectory_from_record(record: Mapping[str, Any], task: Task) -> Trajectory:
    """What was seen, done and achieved, with as many tokens as there were. Which tokens, and prompts, are not recorded."""
    return Trajectory(
        task,
        tuple(_step(turn) for turn in record["turns"]),
        record["success"],
        record["score"],
        StopReason(record["stop"]),
        Observation(record["saw"]),
        Condition(record["condition"]),
        record["detail"],
        record["seed"],
    )


def _step(turn: Mapping[str, Any]) -> Step:
    read, written = _blank(turn.get("prompt_tokens", 0)), _blank(turn.get("tokens", 0))
    completion = Completion(written, np.zeros(len(written), np.float32), turn["wrote"], "stop")
    observation = Observation(turn["saw"])
    valid, effective = turn["valid"], turn["effective"]
    return Step(observation, Prompt("", turn["saw"]), read, completion, turn["action"], valid, effective, turn.get("label", ""))


def _blank(count: int) -> np.ndarray:
    """`count` tokens of which only the number is known; no memory is spent on them."""
    return np.broadcast_to(np.int64(0), (count,))
