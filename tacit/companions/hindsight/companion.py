"""The companion that looks back: it has finished episodes analysed, and knows what they taught when credit is given."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tacit.companions.hindsight.analyzers import Analysis, Analyzer
from tacit.core.moment import Moment
from tacit.core.prices import FREE, Prices
from tacit.core.protocols import Policy
from tacit.core.skills import Skills
from tacit.core.types import Group, Trajectory


class Hindsight:
    """`observe` starts the analysis of a batch; whoever asks for a skill first waits for it. Nothing is remembered from one
    iteration to the next: skills are for the policy that played."""

    name = "hindsight"
    remembers = False
    read_in_play = False

    def __init__(self, analyzer: Analyzer, prices: Prices = FREE) -> None:
        self._analyzer, self._prices = analyzer, prices
        self._trajectories: list[Trajectory] = []
        self._result: Callable[[], list[Analysis]] = list
        self._found: dict[int, Analysis] | None = {}
        self._began = self._waited = 0.0
        self.examples: dict[str, str] = {}
        """why most episodes without a skill have none, for the alarm of that name"""

    def check(self, policy: Policy) -> None:
        """Refuse an analyzer that could say nothing beside this policy."""
        if (refuse := getattr(self._analyzer, "check", None)) is not None:
            refuse(policy)

    def observe(self, groups: Sequence[Group], policy: Policy, moment: Moment) -> dict[str, float]:
        self._trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        self._began, self._waited, self._found = time.perf_counter(), 0.0, None
        self._result = self._analyzer.begin(self._trajectories, policy, moment)
        return {}

    def analysis(self, trajectory: Trajectory) -> Analysis:
        """Of an episode of the present batch."""
        if self._found is None:
            asked = time.perf_counter()
            analyses = self._result()
            self._waited = time.perf_counter() - asked
            self._found = {id(t): a for t, a in zip(self._trajectories, analyses, strict=True)}
        return self._found.get(id(trajectory)) or Analysis(problem="no episode of this batch")

    def skills(self, trajectory: Trajectory) -> Skills:
        return self.analysis(trajectory).skills

    def learn(self, groups: Sequence[Group], policy: Policy, moment: Moment) -> dict[str, float]:
        analyses = [self.analysis(trajectory) for trajectory in self._trajectories]
        if not analyses:
            return {}
        failed = Counter(analysis.problem for analysis in analyses if analysis.problem)
        self.examples = {"unskilled": failed.most_common(1)[0][0]} if failed else {}
        read, written = sum(a.read for a in analyses), sum(a.written for a in analyses)
        return {
            "hindsight/critical_steps": float(np.mean([len(a.skills.steps) for a in analyses])),
            "hindsight/without_skill": sum(failed.values()) / len(analyses),
            "hindsight/asked": float(sum(a.asked for a in analyses)),
            "hindsight/tokens_read": float(read),
            "hindsight/tokens_written": float(written),
            "hindsight/cost": self._prices.of(read, written),
            "hindsight/seconds_waited": round(self._waited, 3),
        }

    def save(self, directory: Path) -> None:
        """Nothing to come back to: answers are written down as they come."""

    def load(self, directory: Path) -> None: ...
