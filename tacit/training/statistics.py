"""What a rollout looked like, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tacit.core.types import Group, StopReason


def rollout_statistics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over episodes or turns; one share per stop reason, so that every ending is accounted for. `group_spread` is the
    standard deviation of the groups' success: some tasks are easier than others."""
    episodes = [t for g in groups for t in g.trajectories]
    steps = [s for g in groups for s in g.steps]
    if not episodes:
        return {}
    mixed = [len({t.success for t in g.trajectories}) > 1 for g in groups]
    return {
        "success": _mean(t.success for t in episodes),
        "score": _mean(t.score for t in episodes),
        "steps": _mean(len(t) for t in episodes),
        "valid": _mean(s.valid for s in steps),
        "effective": _mean(s.effective for s in steps),
        "prompt_tokens": _mean(len(s.prompt_tokens) for s in steps),
        "completion_tokens": _mean(len(s.completion.tokens) for s in steps),
        "mixed_groups": _mean(mixed),
        "groups": len(groups),
        "group_spread": float(np.std([_mean(t.success for t in g.trajectories) for g in groups])),
        "episodes": len(episodes),
        "turns": len(steps),
        "generated_tokens": sum(len(s.completion.tokens) for s in steps),
        "crashed": sum(t.stop.crashed for t in episodes),
        **{f"stop_{reason.value}": _mean(t.stop is reason for t in episodes) for reason in StopReason},
    }


def written_first(groups: Sequence[Group], characters: int = 300) -> str:
    """The first completion, as Python writes it: what is wrong with it may be a line feed."""
    text = next((step.completion.text for group in groups for step in group.steps), "")
    return repr(text if len(text) <= characters else f"{text[:characters]} …") if text else ""


def staleness(groups: Sequence[Group], version: int) -> float:
    """How many updates ago, on average, the completions were written that are about to be learned from; 0 is on-policy."""
    return _mean(version - step.completion.version for group in groups for step in group.steps)


def by_world(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """A world's numbers under its name: `countdown/success`."""
    return {f"{name}/{metric}": value for metric, value in metrics.items()}


def _mean(values) -> float:
    values = list(values)
    return float(np.mean(values)) if values else 0.0
