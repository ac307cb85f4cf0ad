"""The steps of one recorded group by cluster.

Methods that compare steps record each step's cluster, return, and PACE's Q̂, V̂ and branch. For other runs, or for another
partition, clusters are computed from the observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.errors import TacitError, unknown
from tacit.credit.embedders import HashNgram
from tacit.credit.pace import BRANCHES, action_peers, action_values
from tacit.credit.partitions import by_cosine, by_key
from tacit.credit.step_relative import partition_metrics
from tacit.runs.trajectories import read_records

BY = ("recorded", "identity", "ngram")
GAMMA = 0.95  # discount for runs whose method has none


@dataclass(frozen=True)
class ClusterStep:
    member: int
    turn: int
    record: Mapping[str, Any]
    won: bool
    value: float = 0.0  # R, the discounted return
    q: float = 0.0
    v: float = 0.0
    branch: str = BRANCHES[0]

    @property
    def credit(self) -> float:
        """The step-level part of the credit; all of it if the method recorded no parts."""
        return float(self.record.get("step_credit", self.record.get("credit", 0.0)))

    def to_json(self) -> dict[str, Any]:
        numbers = {name: round(value, 4) for name, value in (("return", self.value), ("q", self.q), ("v", self.v))}
        return {"member": self.member, "turn": self.turn, "won": self.won, **self.record, **numbers, "branch": self.branch}


def read_groups(path: Path) -> dict[str, list[ClusterStep]]:
    """Trained-on steps by task, in credit order."""
    groups: dict[str, list[ClusterStep]] = {}
    members: dict[str, int] = {}
    for record in read_records(path):
        if not any("credit" in turn for turn in record["turns"]):
            continue  # crashed, or not selected
        member = members[record["task"]] = members.get(record["task"], -1) + 1
        steps = groups.setdefault(record["task"], [])
        steps += [ClusterStep(member, t, turn, record["success"]) for t, turn in enumerate(record["turns"])]
    if not groups:
        raise TacitError(f"{path} contains no episode that was trained on.")
    return groups


def partition(steps: Sequence[ClusterStep], by: str, epsilon: float = 0.25) -> np.ndarray:
    """[N] cluster of each step, recorded or computed from the observations (`by`). `epsilon`: radius for n-grams."""
    if by not in BY:
        raise unknown("partition", by, BY)
    if by == "recorded":
        if not all("part" in s.record for s in steps):
            raise TacitError(
                "this run's method recorded no clusters; compute them from the text with --by identity or --by ngram."
            )
        return np.array([int(s.record["part"]) for s in steps])
    texts = [s.record["saw"] for s in steps]
    return by_key(texts) if by == "identity" else by_cosine(HashNgram().texts(texts), epsilon)


def value_steps(steps: Sequence[ClusterStep], cluster_N: np.ndarray, gamma: float = GAMMA) -> list[ClusterStep]:
    """The steps with R and PACE's Q̂, V̂ and branch: recorded values for recorded clusters, else computed from returns and
    actions (Q form). Cluster −1 is a single step."""
    returns_N = returns_of(steps, gamma)
    if all("branch" in s.record for s in steps) and all(
        int(s.record["part"]) == p for s, p in zip(steps, cluster_N, strict=True)
    ):
        return [
            replace(s, value=value, q=s.record["q"], v=s.record["v"], branch=BRANCHES[s.record["branch"]])
            for s, value in zip(steps, returns_N.tolist(), strict=True)
        ]
    alone_N = np.arange(len(steps)) + cluster_N.max(initial=-1) + 1
    own_N = by_key(np.where(cluster_N < 0, alone_N, cluster_N).tolist())
    key_N = by_key([s.record["action"] if s.record["valid"] else ("", s.record["wrote"]) for s in steps])
    branch_N = action_peers(returns_N, own_N, key_N)[1]
    q_N, v_N = action_values(returns_N, own_N, key_N)
    rows = zip(steps, returns_N.tolist(), q_N.tolist(), v_N.tolist(), branch_N.tolist(), strict=True)
    return [replace(s, value=value, q=q, v=v, branch=BRANCHES[branch]) for s, value, q, v, branch in rows]


def returns_of(steps: Sequence[ClusterStep], gamma: float) -> np.ndarray:
    """[N] R of each step: recorded, or discounted from the recorded rewards."""
    if all("return" in s.record for s in steps):
        return np.array([float(s.record["return"]) for s in steps])
    returns_N = np.array([float(s.record.get("reward", 0.0)) for s in steps])
    for i in range(len(steps) - 2, -1, -1):
        if steps[i].member == steps[i + 1].member:
            returns_N[i] += gamma * returns_N[i + 1]
    return returns_N


def list_clusters(steps: Sequence[ClusterStep], cluster_N: np.ndarray) -> list[list[ClusterStep]]:
    """Clusters, largest first; members sorted by step-level credit, highest first, then action."""
    clusters: dict[int, list[ClusterStep]] = {}
    for step, label in zip(steps, cluster_N.tolist(), strict=True):
        clusters.setdefault(label, []).append(step)
    ordered = sorted(clusters.values(), key=len, reverse=True)
    return [sorted(cluster, key=lambda s: (-s.credit, s.record["action"])) for cluster in ordered]


def as_json(task: str, steps: Sequence[ClusterStep], cluster_N: np.ndarray, by: str, path: Path) -> dict[str, Any]:
    clusters = [[s.to_json() for s in cluster] for cluster in list_clusters(steps, cluster_N)]
    return {"file": str(path), "task": task, "by": by, **partition_metrics([cluster_N]), "members": clusters}


def choose_group(groups: Mapping[str, list[ClusterStep]], name: str, path: Path) -> str:
    """The task of a group, by task id or number. Default: the largest group with both outcomes, else the largest."""
    if not name:
        return max(groups, key=lambda task: (len({s.won for s in groups[task]}), len(groups[task])))
    if name.isdigit() and int(name) < len(groups):
        return list(groups)[int(name)]
    if name not in groups:
        raise unknown(f"group of {path.name}", name, groups)
    return name
