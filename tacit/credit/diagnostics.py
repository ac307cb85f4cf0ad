"""What a partition left to learn from, in numbers: the singleton tax of BiPACE's section 4.2 and appendix L."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def partition_metrics(parts: Sequence[np.ndarray]) -> dict[str, float]:
    """Over all groups: how many parts, how many of one member, how many steps those are, members per part, matched pairs; and
    the share of a group's steps in its largest part, on average (appendix M: near 1, nothing is told apart)."""
    counts = [np.bincount(part_N[part_N >= 0]) for part_N in parts]
    sizes = np.concatenate([np.zeros(0, np.int64), *counts])
    sizes = sizes[sizes > 0]
    steps = sum(len(part_N) for part_N in parts)
    if not len(sizes):
        return {}
    alone = int((sizes == 1).sum())
    return {
        "parts": float(len(sizes)),
        "parts_singleton": alone / len(sizes),
        "parts_singleton_steps": alone / steps,
        "parts_mean_size": float(sizes.mean()),
        "parts_pairs": float((sizes * (sizes - 1) // 2).sum()),
        "parts_largest": float(np.mean([c.max(initial=0) / len(p) for c, p in zip(counts, parts, strict=True) if len(p)])),
    }


def pace_metrics(
    parts: Sequence[np.ndarray], keys: Sequence[np.ndarray], branches: Sequence[np.ndarray], parsed: Sequence[np.ndarray]
) -> dict[str, float]:
    """Share of steps in each branch (PACE, leave-one-out, zero), actions per part of several members, how many such parts
    hold at least two, and the share of completions whose action could be read."""
    branch_N = np.concatenate(branches) if branches else np.zeros(0)
    if not len(branch_N):
        return {}
    kinds = np.concatenate([_keys_per_part(part_N, key_N) for part_N, key_N in zip(parts, keys, strict=True)])
    share = np.bincount(branch_N, minlength=3) / len(branch_N)
    return {
        "pace_zero": float(share[0]),
        "pace_leave_one_out": float(share[1]),
        "pace_used": float(share[2]),
        "pace_keys_per_part": float(kinds.mean()) if len(kinds) else 0.0,
        "pace_parts_contrasted": float((kinds >= 2).mean()) if len(kinds) else 0.0,
        "pace_parsed": float(np.concatenate(parsed).mean()),
    }


def _keys_per_part(part_N: np.ndarray, key_N: np.ndarray) -> np.ndarray:
    """Distinct action keys of each part with at least two members."""
    if not len(part_N):
        return np.zeros(0, np.int64)
    pairs = np.unique(np.stack([part_N, key_N]), axis=1)
    return np.bincount(pairs[0], minlength=part_N.max() + 1)[np.bincount(part_N) >= 2]
