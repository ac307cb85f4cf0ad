"""The model that adapters sit on: how it is named, where it lies, and whether it is the one a module was trained on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tacit.core.world import Environment
from tacit.engines.models.tiny import TinySettings


@dataclass(frozen=True)
class Base:
    model: str
    """as `--model` takes it: a tiny size, a directory or a hub id"""
    seed: int = 0
    """of a tiny model's first weights"""
    tiny: TinySettings | None = None
    """sizes, where the model is a tiny one from scratch"""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Base:
        tiny = data.get("tiny")
        return cls(data["model"], data["seed"], TinySettings(**tiny) if tiny else None)

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "seed": self.seed, "tiny": asdict(self.tiny) if self.tiny else None}

    def elsewhere(self, model: str | None) -> Base:
        """The same, or another model named in its place: where it lies on this machine."""
        return self if model in (None, self.model) else Base(model, self.seed)

    def source(self, world: Environment) -> str:
        """The checkpoint's directory, or a hub id."""
        from tacit.engines.models.sources import TEXTS_SEED, find_checkpoint

        texts = world.example_texts
        return find_checkpoint(self.model, self.seed, (lambda: texts(TEXTS_SEED)) if texts is not None else None, self.tiny)

    def fingerprint(self, world: Environment) -> str:
        from tacit.engines.models.fingerprint import checkpoint_directory

        directory = checkpoint_directory(self.source(world))
        files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in directory.iterdir())
        return _fingerprint(directory, tuple(files))


@cache
def _fingerprint(directory: Path, files: tuple[tuple[str, int, int], ...]) -> str:
    """Many modules sit on one base, and reading all of a large one takes a minute: once in a process, while its files
    stay as they are."""
    from tacit.engines.models.fingerprint import fingerprint

    return fingerprint(directory)
