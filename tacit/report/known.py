"""What a page may be told beyond the run's own directory. All of it can be absent: the page says so and does without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.core.method import Context
from tacit.core.types import Task
from tacit.core.world import Environment


@dataclass(frozen=True)
class Known:
    world: Environment | None = None
    """names failures, counts skills, and is played again for the prompts"""
    tasks: Mapping[str, Task] = field(default_factory=dict)
    """by id: those of the panel and those trained on"""
    context: Context | None = None
    """what the agent read"""
    defaults: Mapping[str, Any] | None = None
    """settings of the same method, world and model where nothing else is said"""
    notices: tuple[str, ...] = ()
    """why something is absent"""
