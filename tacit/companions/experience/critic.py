"""Actor-critic (§B.1): the actor is asked whether an entry is to guide it, before it begins.

    accept          the entry as it is           s_c = 1
    refine: …       in the actor's own words     s_c = 0.5
    reject          the agent plays without      s_c = 0
    r̃(m) = s_c(m) + r(m)                         (8)      r(m) = ±1 by the outcome; a rejected entry had no outcome: r̃ = 0

It is told how often it has succeeded on tasks of the kind. What cannot be read leaves the entry as it is, and nobody vouches
for it: s_c = 0. Its answers are not trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tacit.companions.experience.asking import weighing
from tacit.companions.experience.entries import LONGEST, Entry
from tacit.companions.experience.operations import Style, after_thought
from tacit.core.protocols import Policy, Request, Sampling
from tacit.core.seeds import derive
from tacit.core.text import is_unicode
from tacit.core.types import Task, Trajectory

Verdict = Literal["accept", "refine", "reject", "unread"]
SCORES: Mapping[Verdict, float] = {"accept": 1.0, "refine": 0.5, "reject": 0.0, "unread": 0.0}


@dataclass
class Critic:
    style: Style
    max_tokens: int = 64
    temperature: float = 1.0
    wins: dict[str, list[int]] = field(default_factory=dict)
    """family -> [episodes won, episodes played] without or with an entry"""

    def weigh(self, policy: Policy, task: Task, entries: Sequence[Entry], seed: int) -> list[tuple[Verdict, str]]:
        """(verdict, the note to play by) for each entry."""
        asked = [weighing(task.goal, entry.text, self.rate(task), self.style) for entry in entries]
        prompts = [policy.encode_prompt(text) for text in asked]
        fits = [i for i, prompt in enumerate(prompts) if len(prompt) + self.max_tokens <= policy.context_limit]
        requests = [Request(prompts[i], derive(seed, "critic", i)) for i in fits]
        answers = policy.sample(requests, Sampling(self.temperature, max_tokens=self.max_tokens)) if requests else []
        said = dict(zip(fits, (answer.text for answer in answers), strict=True))
        return [read_verdict(said.get(i, ""), entry.text) for i, entry in enumerate(entries)]

    def rate(self, task: Task) -> float:
        """r̄_θ: the share of this family's episodes that were won so far; 0 before the first."""
        won, played = self.wins.get(task.family, [0, 0])
        return won / max(1, played)

    def saw(self, trajectory: Trajectory) -> None:
        own = self.wins.setdefault(trajectory.task.family, [0, 0])
        own[0] += int(trajectory.success)
        own[1] += 1


def read_verdict(answer: str, entry: str) -> tuple[Verdict, str]:
    lines = after_thought(answer).strip().splitlines()
    word, _, rest = (lines[0] if lines else "").partition(":")
    match word.strip().lower():
        case "accept":
            return "accept", entry
        case "refine" if rest.strip() and is_unicode(rest):
            return "refine", rest.strip()[:LONGEST]
        case "reject":
            return "reject", ""
    return "unread", entry


def critic_reward(verdict: Verdict, won: bool) -> float:
    """r̃(m) of one member."""
    return 0.0 if verdict == "reject" else SCORES[verdict] + (1.0 if won else -1.0)
