"""A method with a second policy: a pupil that imitates the trained one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tacit.core.credit import Batch
from tacit.core.method import Companion, Part, adds
from tacit.core.protocols import Policy
from tacit.core.types import flat_steps
from tacit.losses.surrogates import Imitation
from tacit.methods.grpo import GRPO


class Lessons(Companion):
    name = "lessons"

    def __init__(self, pupil: Callable[[], Policy], lr: float) -> None:
        self._pupil, self._lr = pupil, lr
        self.turns = 0

    def observe(self, groups, policy, info) -> dict[str, float]:
        return {"share_of_run": info.iteration / info.iterations}

    def learn(self, groups, policy, info) -> dict[str, float]:
        seen = flat_steps(groups)
        self.turns += len(seen)
        if seen:
            batch = Batch.imitation([s.prompt_tokens for s in seen], [s.completion.tokens for s in seen])
            self._pupil().update(batch, (Imitation(),), self._lr)
        return {"turns_taught": self.turns}

    def save(self, directory: Path) -> None:
        (directory / "turns.json").write_text(json.dumps(self.turns))

    def load(self, directory: Path) -> None:
        self.turns = json.loads((directory / "turns.json").read_text())


@dataclass(frozen=True)
class Teaching(GRPO):
    """GRPO with a pupil."""

    name: ClassVar[str] = "teaching"

    pupil_lr: float = 1e-3
    """learning rate of the pupil"""

    def changes(self, world, resources) -> Sequence[Part]:
        return (adds("companions", "lessons", Lessons(resources.policy("pupil"), self.pupil_lr)),)
