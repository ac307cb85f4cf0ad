"""Checkpoints: written atomically. The newest few, the best and the last of each stage are kept."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.files import check_tensors, read_json
from tacit.core.method import Companion
from tacit.core.protocols import Policy
from tacit.runs.files import write_directory, write_json

STATE, POLICY, POLICIES, COMPANIONS = "state.json", "policy", "policies", "companions"


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    stage: str
    step: int

    def state(self) -> dict[str, Any]:
        file = self.path / STATE
        try:
            return read_json(file)
        except (OSError, ValueError) as error:
            raise TacitError(
                f"cannot read the checkpoint {file}: {error}. Delete {self.path} to resume from an older one."
            ) from error

    def __str__(self) -> str:
        return f"{self.path.name}, from {'imitation' if self.stage == 'sft' else 'RL'}"

    def check(self) -> Checkpoint:
        """Raise if its weights are damaged, or if it has anything but files and directories: opening a named pipe would block
        forever."""
        if odd := next((file for file in self.path.rglob("*") if not file.is_file() and not file.is_dir()), None):
            raise TacitError(f"cannot read the checkpoint {self.path}: {odd.relative_to(self.path)} is not a file.")
        try:
            check_tensors(self.path)
        except (OSError, ValueError) as error:
            others = ", ".join(sorted(path.name for path in self.path.parent.glob("[!.]*-*") if path != self.path))
            remedy = f"use another one (--checkpoint {others})" if others else "train again"
            raise TacitError(f"the checkpoint {self.path} is damaged: {error}. Delete it, then {remedy}.") from error
        return self

    @property
    def policy(self) -> Path:
        return self.path / POLICY

    def load(self, policy: Policy, beside: Mapping[str, Policy], companions: Mapping[str, Companion]) -> None:
        """Restore the policy, further policies (`beside`) and companions, the latter two by name."""
        self.check()
        policy.load(self.policy)
        for name, other in beside.items():
            other.load(self._place(POLICIES, name, "policy"))
        for name, companion in companions.items():
            companion.load(self._place(COMPANIONS, name, "companion"))

    def companion(self, name: str) -> Path:
        return self._place(COMPANIONS, name, "companion")

    def _place(self, folder: str, name: str, what: str) -> Path:
        place = self.path / folder / name
        if not place.is_dir():
            present = sorted(p.name for p in (self.path / folder).glob("*")) or ["none"]
            raise TacitError(
                f"the checkpoint {self.path} has no {what} {name!r} (it has {', '.join(present)}): it was saved with other "
                "settings or by another version of tacit."
            )
        return place


class Checkpoints:
    """The checkpoints of a run, in directories `<stage>-<step>`, ordered by stage and step."""

    def __init__(self, directory: Path, stages: tuple[str, ...], keep: int = 1) -> None:
        self._directory, self._stages, self._keep = directory, stages, keep

    def clear_leftovers(self) -> None:
        """Delete temporary directories of interrupted writes. Only the process that writes the run may call it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for leftover in self._directory.glob(".*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def all(self) -> list[Checkpoint]:
        """All checkpoints, oldest first."""
        if not self._directory.is_dir():
            return []
        checkpoints = []
        for path in self._directory.iterdir():
            stage, _, step = path.name.rpartition("-")
            if stage in self._stages and step.isdigit():
                checkpoints.append(Checkpoint(path, stage, int(step)))
        return sorted(checkpoints, key=lambda c: (self._stages.index(c.stage), c.step))

    def newest(self) -> Checkpoint | None:
        checkpoints = self.all()
        return checkpoints[-1] if checkpoints else None

    def find(self, name: str) -> Checkpoint:
        """`best`, `newest`, `sft`, `rl`, or a directory name such as `rl-000020`."""
        if name == "best" and (best := self._best()) is not None:
            return best.check()
        name = "newest" if name == "best" else name
        matching = [c for c in self.all() if name in ("newest", c.stage, c.path.name)]
        if not matching:
            saved = ", ".join(c.path.name for c in self.all())
            raise TacitError(f"no checkpoint {name!r} in {self._directory}; there {f'are {saved}' if saved else 'is none'}.")
        return matching[-1].check()

    def save(
        self,
        stage: str,
        step: int,
        policy: Policy,
        state: dict[str, Any],
        optimizer: bool = True,
        beside: Mapping[str, Policy] | None = None,
        companions: Mapping[str, Companion] | None = None,
    ) -> Checkpoint:
        path = self._directory / f"{stage}-{step:06d}"

        def fill(directory: Path) -> None:
            for name, companion in (companions or {}).items():  # first, because one may be training a policy in the background
                (directory / COMPANIONS / name).mkdir(parents=True)
                companion.save(directory / COMPANIONS / name)
            policy.save(directory / POLICY, optimizer=optimizer)
            for name, other in (beside or {}).items():
                other.save(directory / POLICIES / name, optimizer=optimizer)
            write_json(directory / STATE, state)

        write_directory(path, fill)
        self._prune()
        return Checkpoint(path, stage, step)

    def _best(self) -> Checkpoint | None:
        """The checkpoint with the highest evaluated success, the latest of equals; None if none was evaluated."""
        checkpoints = self.all()
        measured = (
            {(e["stage"], e["step"]): e["success"] for e in checkpoints[-1].state().get("evaluations", ())}
            if checkpoints
            else {}
        )
        evaluated = [c for c in reversed(checkpoints) if (c.stage, c.step) in measured]
        return max(evaluated, key=lambda c: measured[c.stage, c.step], default=None)

    def _prune(self) -> None:
        """Delete all but the newest `keep`, the best, and the last of every stage."""
        checkpoints, best = self.all(), self._best()
        wanted = {c.path for c in checkpoints[max(0, len(checkpoints) - self._keep) :]} | ({best.path} if best else set())
        wanted |= {[c for c in checkpoints if c.stage == stage][-1].path for stage in {c.stage for c in checkpoints}}
        for checkpoint in checkpoints:
            if checkpoint.path not in wanted:
                shutil.rmtree(checkpoint.path, ignore_errors=True)
