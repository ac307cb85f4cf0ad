"""A module that is offered: its weights in memory, its context, and the draft it may bring along."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.core.method import Context
from tacit.core.world import Environment
from tacit.modules.drafting.tracker import FencedDraft
from tacit.modules.module import Module
from tacit.serving.aside import Aside

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy


class Offer:
    """A module with its weights in memory."""

    def __init__(self, name: str, module: Module, world: Environment, context: Context, policy: LocalPolicy) -> None:
        self.name, self.module, self.world, self.context, self.policy = name, module, world, context, policy
        self.users = 0
        """sessions and requests under way"""
        self.draft = draft_of(context)
        """the tracker, where it was drafted"""
        self.aside = Aside() if self.draft is not None else None
        """where a draft is asked: behind its fence it may take seconds"""

    def close(self) -> None:
        if self.aside is not None and self.draft is not None:
            self.aside.close(self.draft.close)

    def to_json(self) -> dict[str, Any]:
        return described(self.module, self.world)


def draft_of(context: Context) -> FencedDraft | None:
    tracker = getattr(context, "tracker", None)
    return tracker if isinstance(tracker, FencedDraft) else None


def name_of(world: Environment, module: Module) -> str:
    return f"{world.name}/{module.skill}"


def described(module: Module, world: Environment) -> dict[str, Any]:
    return {
        "name": name_of(world, module),
        "world": world.name,
        "skill": module.skill,
        "families": list(module.families),
        "digest": module.digest,
        "tracker": module.tracker,
        "base": {"model": module.base.model, "fingerprint": module.fingerprint},
        "max_steps": module.max_steps,
        "splits": list(world.splits),
        "scores": {stage: dict(score) for stage, score in module.scores.items()},
    }
