"""What several tries at a task say: pass@k and SC@k, unbiased, from n tries of which c succeeded; and how sure their mean is.

A score of k tries is its mean over every choice of k among the n that were played, so that all of them count and n may be
larger than k. Written with exact fractions of binomials: no draw is made, and n = k is the plain rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb

from tacit.core.errors import TacitError
from tacit.evaluation.intervals import wilson, worth

Rule = Callable[[int, int, int], float]
"""(k, tries, successes) -> share"""


def pass_at(k: int, tries: int, successes: int) -> float:
    """Chance that at least one of k tries succeeds:  1 − C(n−c, k) / C(n, k)."""
    check_k(k, tries)
    return 1.0 - comb(tries - successes, k) / comb(tries, k)


def majority_at(k: int, tries: int, successes: int) -> float:
    """SC@k: chance that more than half of k tries succeed:  Σ_{j > k/2} C(c, j) C(n−c, k−j) / C(n, k).

    Half of an even k is no majority.
    """
    check_k(k, tries)
    more_than_half = range(k // 2 + 1, k + 1)
    return sum(comb(successes, j) * comb(tries - successes, k - j) for j in more_than_half) / comb(tries, k)


def over_tasks(rule: Rule, k: int, outcomes: Sequence[Sequence[bool]]) -> float:
    """The mean of a rule over tasks, each with the outcomes of its tries. No task: 0."""
    shares = [rule(k, len(tries), sum(tries)) for tries in outcomes]
    return sum(shares) / len(shares) if shares else 0.0


def interval_over_tasks(outcomes: Sequence[Sequence[bool]], rule: Rule = pass_at, k: int = 1) -> tuple[float, float]:
    """The 95% interval of `over_tasks`, for T tasks with n tries each: Wilson's, as wide as tries at one task that are alike
    demand. pass@1, the default, is the success rate.

    All tries are worth so many independent tasks tried k times (`worth`), at most T n/k, of which no try is in two. k = n is
    plain Wilson.
    """
    tries = sum(map(len, outcomes))
    if not tries:
        return wilson(0, 0)
    shares = [rule(k, len(own), sum(own)) for own in outcomes]
    p = sum(shares) / len(shares)
    tasks = worth(shares, p * (1 - p), tries / k)
    return wilson(p * tasks, tasks)


def check_k(k: int, tries: int) -> None:
    if k < 1:
        raise TacitError(f"k = {k} must be at least 1.")
    if k > tries:
        raise TacitError(f"pass@{k} and SC@{k} need {k} episodes per task, and there are {tries}; add --repeats {k}.")
