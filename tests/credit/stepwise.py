"""Builders for small groups, and slow reference implementations of the estimators, written as in the papers."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.types import Completion, Group, Observation, Prompt, Step, StopReason, Task, Trajectory

TASK = Task("toy", "toy/0", "only", "train", 0, "do it")


def make_step(saw: str, did: str = "act", valid: bool = True, tokens: Sequence[int] = (1,), hidden=None) -> Step:
    tokens_T = np.array(tokens, np.int64)
    completion = Completion(tokens_T, np.full(len(tokens_T), -1.0), did, "stop", None if hidden is None else np.asarray(hidden))
    return Step(Observation(saw, ("look", "go")), Prompt("task", saw), np.arange(len(saw) + 1), completion, did, valid)


def make_group(members: Sequence[Sequence[Step]]) -> Group:
    end = Observation("end")
    played = [Trajectory(TASK, tuple(steps), False, 0.0, StopReason.STEP_LIMIT, end) for steps in members]
    return Group(TASK, tuple(played))


def seen(*members: str) -> Group:
    """One string per member, one letter per step: the observation."""
    return make_group([[make_step(letter) for letter in member] for member in members])


def outcomes(group: Group, values: Sequence[float]) -> Rewards:
    return Rewards.at_the_end(group, np.array(values, float))


def values_of(credit) -> list[float]:
    return [float(tokens[0]) for tokens in credit.steps()]


def slow_similarity(texts: Sequence[str], threshold: float) -> list[int]:
    first, part = [], []
    for text in texts:
        for k, other in enumerate(first):
            if SequenceMatcher(None, other, text).ratio() >= threshold:
                part.append(k)
                break
        else:
            part.append(len(first))
            first.append(text)
    return part


def slow_cosine(features: np.ndarray, epsilon: float) -> list[int]:
    """Algorithm 1, line by line, in double precision."""
    centroids: list[np.ndarray] = []
    members: list[list[int]] = []
    for i, feature in enumerate(np.asarray(features, np.float64)):
        x = feature / np.linalg.norm(feature)
        if not centroids:
            centroids.append(x)
            members.append([i])
            continue
        k = int(np.argmax([x @ c for c in centroids]))
        if 1 - x @ centroids[k] <= epsilon:
            members[k].append(i)
            moved = centroids[k] + (x - centroids[k]) / len(members[k])
            centroids[k] = moved / np.linalg.norm(moved)
        else:
            centroids.append(x)
            members.append([i])
    part = [0] * len(features)
    for k, rows in enumerate(members):
        for i in rows:
            part[i] = k
    return part


def slow_cluster_relative(returns, part, std, delta=1e-6) -> list[float]:
    answer = []
    for i in range(len(returns)):
        pool = [returns[j] for j in range(len(returns)) if part[j] == part[i]]
        if part[i] < 0 or len(pool) < 2 or max(pool) == min(pool):
            answer.append(0.0)
            continue
        mean = sum(pool) / len(pool)
        scale = 1.0
        if std is not None:
            squares = sum((r - mean) ** 2 for r in pool)
            scale = (squares / (len(pool) - (std == "sample"))) ** 0.5 + delta
        answer.append((returns[i] - mean) / scale)
    return answer


def slow_pace(returns, part, key, form) -> tuple[list[float], list[str]]:
    """Eqs. 4–7 with the fallbacks of section 3.5."""
    answer, branch = [], []
    for i in range(len(returns)):
        cluster = [j for j in range(len(returns)) if part[j] == part[i]]
        same = [j for j in cluster if key[j] == key[i]]
        different = [j for j in cluster if key[j] != key[i]]
        rest = [returns[j] for j in cluster if j != i]
        if len(cluster) == 1:
            answer.append(0.0)
            branch.append("zero")
        elif (form == "q" and len(same) == 1) or (form == "difference" and not different):
            answer.append(returns[i] - sum(rest) / len(rest))
            branch.append("leave one out")
        elif form == "q":
            q = sum(returns[j] for j in same) / len(same)
            v = sum(returns[j] for j in cluster) / len(cluster)
            answer.append(q - v)
            branch.append("pace")
        else:
            answer.append(returns[i] - sum(returns[j] for j in different) / len(different))
            branch.append("pace")
    return answer, branch


def slow_hgpo(returns, seen_by_member: Sequence[str], depth: int, alpha: float, delta: float = 1e-6) -> list[float]:
    """For each step and each k up to its history, compare with the steps that share the last k observations."""
    places = [(m, t) for m, member in enumerate(seen_by_member) for t in range(len(member))]

    def context(m: int, t: int, k: int) -> str | None:
        return seen_by_member[m][t - k + 1 : t + 1] if t + 1 >= k else None

    answer = []
    for i, (m, t) in enumerate(places):
        weighted = total = 0.0
        for k in range(1, min(depth, t + 1) + 1):
            pool = [returns[j] for j, (a, b) in enumerate(places) if context(a, b, k) == context(m, t, k)]
            if len(pool) < 2 or max(pool) == min(pool):
                continue
            mean = sum(pool) / len(pool)
            deviation = (sum((r - mean) ** 2 for r in pool) / len(pool)) ** 0.5
            weighted += (k + 1) ** alpha * (returns[i] - mean) / (deviation + delta)
            total += (k + 1) ** alpha
        answer.append(weighted / total if total else 0.0)
    return answer
