"""The run directory.

settings.json    the resolved configuration        versions.json   code, libraries, machine, git state
metrics.jsonl    one line per step                 tensorboard/    the same as events
trajectories/    every episode, gzipped JSON lines checkpoints/    policy, optimizer, companions; newest k and best
alarms.jsonl     warnings, e.g. of collapse       evaluations/    later results of `tacit eval`
summary.json     final results
"""

from __future__ import annotations

import fcntl
import json
import math
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tacit
from tacit.core.errors import TacitError, install_command
from tacit.core.files import check_tensors, read_json, refuse_links
from tacit.core.method import Companion
from tacit.core.protocols import Policy
from tacit.core.trust import flag_for_later
from tacit.runs.files import explain_disk_errors, read_objects, write_directory, write_json, write_text

# Checkpoints: written atomically. The newest few, the best and the last of each stage are kept.

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
        if not (saved := ", ".join(c.path.name for c in self.all())):
            run = self._directory.parent
            raise TacitError(
                f"{run} has no checkpoint yet. Continue it with `{resume_command(run)}`. To evaluate or play its initial "
                "weights, add --checkpoint untrained."
            )
        if not matching:
            raise TacitError(f"no checkpoint {name!r} in {self._directory}; there are {saved}.")
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


# The directory.

STAGES = ("sft", "rl")
SETTINGS, SUMMARY = "settings.json", "summary.json"
UNSTARTED_FILES = {
    ".lock", "versions.json", "metrics.jsonl", "tensorboard", "wandb", "checkpoints", "experience", "hindsight", "judge",
    "recipe.json", "console.log", "failure.txt",
}  # fmt: skip
"""files that may exist before settings.json; the last three are written by `tacit compare`"""


class Run:
    def __init__(self, path: Path, keep: int = 2, wandb: str = "") -> None:
        self.path = path
        self._lock = _lock(path)
        self.checkpoints = open_checkpoints(path, keep)
        self.checkpoints.clear_leftovers()
        self.metrics = Metrics(path, wandb, path.name)

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any], keep: int = 2, wandb: str = "") -> Run:
        if (path / SETTINGS).exists():
            raise TacitError(
                f"{path} already contains a run. Resume it with `{resume_command(path)}`, or choose another --out."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TacitError(f"cannot create the run directory {path}: {error.strerror}. Choose another --out.") from error
        run = cls(path, keep, wandb)
        write_json(path / "versions.json", versions())
        write_json(path / SETTINGS, settings)
        return run

    def trajectories(self, stage: str, step: int) -> Path:
        return self.path / "trajectories" / f"{stage}-{step:06d}.jsonl.gz"

    def close(self) -> None:
        self.metrics.close()
        self._lock.close()


def resume_command(path: Path) -> str:
    """`tacit train --resume PATH`, with --trust-code if the run's settings name unregistered code."""
    with suppress(TacitError):
        return f"tacit train --resume {path}{flag_for_later(read_settings(path))}"
    return f"tacit train --resume {path}"


def open_checkpoints(path: Path, keep: int = 1) -> Checkpoints:
    """The checkpoints of a run, for reading; the run may be in progress."""
    return Checkpoints(path / "checkpoints", STAGES, keep)


def read_settings(path: Path) -> dict[str, Any]:
    if not (path / SETTINGS).exists():
        raise TacitError(f"{path} is not a run directory: {describe_directory(path)}")
    settings = _read(path, SETTINGS, "")
    for name in ("method", "engine", "schedule", "policies"):
        if not isinstance(settings, dict) or not isinstance(settings.get(name, None if name == "method" else {}), dict):
            raise _damaged(path / SETTINGS, f"{name} is not a table of settings")
    return settings


MAX_NAMED = 5  # maximum runs listed in a message


def describe_directory(path: Path) -> str:
    """A sentence that says why this path is not a run; lists runs below it."""
    if path.is_file():
        return "it is a file."
    if not path.is_dir():
        return "it does not exist."
    if inside := find_runs(path):
        return f"it contains runs: {', '.join(inside)}; name one of them."
    names = {own.name for own in path.iterdir()}
    stopped = " A run was stopped here before it started: repeat the command that started it."
    return f"it has no {SETTINGS}.{stopped if names and names <= UNSTARTED_FILES else ''}"


def find_runs(path: Path) -> list[str]:
    """Up to MAX_NAMED runs in this directory or its `runs` directory."""
    runs = sorted(p.parent for pattern in ("*", "runs/*") for p in path.glob(f"{pattern}/{SETTINGS}"))
    return [str(run) for run in runs[:MAX_NAMED]]


def read_summary(path: Path) -> dict[str, Any]:
    return _read(path, SUMMARY, f"the run did not finish; continue it with `{resume_command(path)}`.")


def find_summary(path: Path) -> dict[str, Any] | None:
    """The summary; None if the run has not finished or the file is damaged. Resuming the run writes it again."""
    try:
        summary = read_summary(path)
    except TacitError:
        return None
    scores = summary.get("evaluations", []) if isinstance(summary, dict) else None
    return summary if isinstance(scores, list) and all(map(_is_evaluation, scores)) else None


def _is_evaluation(value: Any) -> bool:
    try:
        named = isinstance(value["stage"], str) and "step" in value and math.isfinite(value["success"])
        return named and all(map(_is_evaluation, value.get("worlds", {}).values()))
    except (KeyError, TypeError, AttributeError, OverflowError):
        return False


def _read(path: Path, name: str, remedy: str) -> dict[str, Any]:
    file = path / name
    if not file.exists():
        raise TacitError(f"{path} has no {name}: {remedy}")
    try:
        return read_json(file)
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, why: object) -> TacitError:
    return TacitError(f"{file} is damaged ({why}). Put it back from a copy, or start a new run.")


def _lock(path: Path):
    """Lock the run for this process; raises if another process has it."""
    path.mkdir(parents=True, exist_ok=True)
    file = (path / ".lock").open("a")  # not "w", which would truncate the target of a link
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise TacitError(f"another process is writing to {path}; wait for it, or choose another --out.") from error
    return file


def versions() -> dict[str, Any]:
    libraries: dict[str, str | None] = {}
    for name in ("torch", "transformers", "tokenizers", "peft", "numpy", "safetensors"):
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = None
    return {
        "tacit": tacit.__version__,
        "git": _git_state(),
        "python": sys.version.split()[0],
        "machine": f"{platform.system()} {platform.machine()}",
        "libraries": libraries,
    }


@cache
def code_version() -> str:
    """`0.1.0`; in a git checkout with the commit, `0.1.0+8f47c37d2a1b`, and `.changed` if there are uncommitted changes."""
    git = _git_state()
    if git is None:
        return tacit.__version__
    return f"{tacit.__version__}+{git['commit'][:12]}{'.changed' if git['changed'] else ''}"


@cache
def _git_state() -> dict[str, Any] | None:
    def git(*words: str) -> str:
        root = Path(tacit.__file__).resolve().parent.parent
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10).stdout

    try:
        return {
            "commit": git("rev-parse", "HEAD").strip(),
            "changed": bool(git("status", "--porcelain", "--", "tacit").strip()),
        }
    except (OSError, subprocess.SubprocessError):
        return None


# Metrics: JSON lines, TensorBoard, and W&B if requested.


class Metrics:
    """Appends one record per step of a stage. `rewind` drops the records after a checkpoint, so that a resumed run writes the
    same file as an uninterrupted one, except for times."""

    def __init__(self, directory: Path, wandb_project: str = "", run_name: str = "") -> None:
        self._path = directory / "metrics.jsonl"
        self._tensorboard_directory = directory / "tensorboard"
        self.writers: dict[str, Any] = {}
        self._wandb: Any = None
        if wandb_project:
            try:
                import wandb
            except ImportError as error:
                raise TacitError(f"wandb is not installed; {install_command('wandb')}, or remove --wandb.") from error
            identity = run_name.replace("/", "-")
            self._wandb = wandb.init(project=wandb_project, name=run_name, dir=str(directory), resume="allow", id=identity)

    def rewind(self, stages: tuple[str, ...], stage: str, step: int) -> list[dict[str, Any]]:
        """Keep the records up to and including (stage, step), and return them. An empty stage keeps none."""
        here = (stages.index(stage), step) if stage else (-1, 0)
        kept = [r for r in read_metrics(self._path) if (stages.index(r["stage"]), r["step"]) <= here]
        write_text(self._path, "".join(json.dumps(r) + "\n" for r in kept))
        return kept

    def write(self, stage: str, step: int, values: dict[str, float]) -> None:
        record = {"stage": stage, "step": step, **{k: _plain(v) for k, v in values.items()}, "at": round(time.time(), 1)}
        with explain_disk_errors(self._path):
            with open(self._path, "a", encoding="utf-8", opener=refuse_links) as file:
                file.write(json.dumps(record) + "\n")
            if stage not in self.writers:
                self.writers[stage] = self.open_writer(stage, step)
            for name, value in values.items():
                self.writers[stage].add_scalar(f"{stage}/{name}", value, step)
        if self._wandb is not None:
            self._wandb.log({f"{stage}/{name}": value for name, value in values.items()})

    def open_writer(self, stage: str, step: int) -> Any:
        """A TensorBoard writer, with a folder per stage: `purge_step` drops later steps of *all* curves in its folder."""
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._tensorboard_directory / stage), purge_step=step, flush_secs=30)

    def close(self) -> None:
        for writer in self.writers.values():
            # On a full disk the last events are lost, but metrics.jsonl has them. Do not hide the original error.
            with suppress(OSError):
                writer.close()
        if self._wandb is not None:
            self._wandb.finish()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    records = read_objects(path)
    return [record for record in records if isinstance(record.get("stage"), str) and isinstance(record.get("step"), int)]


def _plain(value: float) -> float | None:
    """Rounded to six digits; None if not finite, since JSON has no NaN."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
