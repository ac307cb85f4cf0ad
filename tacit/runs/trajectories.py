"""Episodes as compact JSON a person can read, and back: the one form in which runs and evaluations keep them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit.core.types import PLAIN, Completion, Condition, Observation, Prompt, Step, StopReason, Task, Trajectory


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
        **condition_record(trajectory.condition),
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
                **({"thought": step.thought} if step.thought else {}),
                **({"label": step.label} if step.label else {}),
                **({"earned": step.reward} if step.reward else {}),
                **({"signals": dict(step.signals)} if step.signals else {}),
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
        recorded_condition(record),
        record["detail"],
        record["seed"],
    )


def condition_record(condition: Condition) -> dict[str, str]:
    """`{"condition": "plain"}`; of any other condition also what was told, and where that came from."""
    told = {} if condition == PLAIN else {"note": condition.note, "entry": condition.entry}
    return {"condition": condition.name, **told}


def recorded_condition(record: Mapping[str, Any]) -> Condition:
    """The inverse. A record from before notes were kept has a name and no `note`: what was told is lost."""
    return Condition(record["condition"], record.get("note", ""), record.get("entry", ""))


def _step(turn: Mapping[str, Any]) -> Step:
    read, written = _blank(turn.get("prompt_tokens", 0)), _blank(turn.get("tokens", 0))
    completion = Completion(written, np.zeros(len(written), np.float32), turn["wrote"], "stop")
    observation = Observation(turn["saw"])
    return Step(
        observation,
        Prompt("", turn["saw"]),
        read,
        completion,
        turn["action"],
        turn["valid"],
        turn["effective"],
        turn.get("label", ""),
        turn.get("signals", {}),
        turn.get("earned", 0.0),
        turn.get("thought", ""),
    )


def _blank(count: int) -> np.ndarray:
    """`count` tokens of which only the number is known; no memory is spent on them."""
    return np.broadcast_to(np.int64(0), (count,))
