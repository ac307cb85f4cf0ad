"""Agreement of credit estimators with the true advantage, at several checkpoints of training runs.
See docs/experiments/credit_quality.md for the definitions.

    python benchmarks/credit_quality.py RUN … --jobs 16 --json credit.json        # about ten minutes on 16 cores
    python benchmarks/credit_quality.py RUN --checkpoints start,rl-000004 --groups 4 --rollouts 4

By default, a run is measured at its start (imitated or untrained), in the middle and at the end of RL. Train with a large
--keep, so that these checkpoints exist. For each checkpoint, one process plays and credits the next iteration's groups; then
all processes estimate true advantages, one group at a time. Finished groups are saved next to the results (FILE.parts/):
run the same command again to resume.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.runs.directory import open_checkpoints, read_settings
from tacit.runs.files import write_json

MOMENTS = ("start", "middle", "end")


@dataclass(frozen=True)
class Cell:
    """One checkpoint of a run to measure."""

    run: str
    moment: str
    checkpoint: str

    @property
    def label(self) -> str:
        return f"{self.run} {self.moment}" + (f" ({self.checkpoint})" if self.checkpoint != self.moment else "")


@dataclass(frozen=True)
class Request:
    """Options of the measurement. Saved parts are reused only if all are equal."""

    groups: int
    rollouts: int
    gamma: float
    geometry: str
    methods: str


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    request = Request(arguments.groups, arguments.rollouts, arguments.discount, arguments.geometry, arguments.methods)
    parts = arguments.json.with_name(f"{arguments.json.name}.parts")
    try:
        cells = [cell for run in arguments.runs for cell in cells_of(run, arguments.checkpoints.split(","))]
        measure(cells, request, parts, arguments.jobs)
        result = summarise(cells, request, parts)
    except TacitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_json(arguments.json, result)
    print(f"written to {arguments.json}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories")
    parser.add_argument(
        "--checkpoints",
        default=",".join(MOMENTS),
        metavar="NAME,…",
        help="start, middle, end, or checkpoints by name such as rl-000006 (default: start,middle,end)",
    )
    parser.add_argument("--groups", type=int, default=16, metavar="N", help="groups per checkpoint (default: 16)")
    parser.add_argument("--rollouts", type=int, default=8, metavar="M", help="Monte Carlo rollouts per state (default: 8)")
    parser.add_argument("--discount", type=float, default=0.95, metavar="G", help="discount (default: 0.95)")
    parser.add_argument("--geometry", default="", metavar="G,…", help="as for `tacit inspect credit`")
    parser.add_argument("--methods", default="", metavar="NAME,…", help="further methods, with their published settings")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)")
    parser.add_argument("--json", type=Path, default=Path("credit_quality.json"), metavar="FILE", help="output file")
    return parser


def cells_of(run: str, wanted: Sequence[str]) -> list[Cell]:
    """The checkpoints to measure. Moments with the same checkpoint give one cell."""
    read_settings(Path(run))  # raises TacitError if this is not a run
    saved = [checkpoint.path.name for checkpoint in open_checkpoints(Path(run)).all()]
    saved_in_rl = [name for name in saved if name.startswith("rl-")]
    imitated = [name for name in saved if name.startswith("sft-")]
    by_moment = {"start": imitated[-1] if imitated else "untrained"}
    if saved_in_rl:
        half = int(saved_in_rl[-1][3:]) / 2
        by_moment |= {"end": saved_in_rl[-1], "middle": min(saved_in_rl, key=lambda name: abs(int(name[3:]) - half))}
    found: dict[str, Cell] = {}
    for moment in filter(None, map(str.strip, wanted)):
        checkpoint = by_moment.get(moment, moment)
        if checkpoint in MOMENTS:
            raise TacitError(f"{run} has no RL checkpoint, so no {moment}; use --checkpoints start.")
        if checkpoint != "untrained" and checkpoint not in saved:
            raise TacitError(f"{run} has no checkpoint {checkpoint!r}; there are {', '.join(saved) or 'none'}.")
        found.setdefault(checkpoint, Cell(run, moment, checkpoint))
    return list(found.values())


def measure(cells: Sequence[Cell], request: Request, parts: Path, jobs: int) -> None:
    """Compute all missing parts."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per process; processes run in parallel
    began, done = time.monotonic(), 0
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        playing: dict[Future[int], Cell] = {pool.submit(play, cell, request, str(parts)): cell for cell in cells}
        valuing: set[Future[str]] = set()
        try:
            while playing or valuing:
                finished, _ = wait([*playing, *valuing], return_when=FIRST_COMPLETED)
                for future in finished:
                    if (cell := playing.pop(future, None)) is not None:  # type: ignore[call-overload]
                        missing = [n for n in range(future.result()) if not group_file(parts, cell, request, n).exists()]
                        valuing |= {pool.submit(value, cell, request, str(parts), n) for n in missing}
                        print(f"{cell.label}: {future.result()} groups, {len(missing)} to evaluate", flush=True)
                    else:
                        valuing.discard(future)  # type: ignore[arg-type]
                        done += 1
                        seconds = time.monotonic() - began
                        left = (
                            f"about {seconds / done * len(valuing):.0f} s left"
                            if not playing
                            else f"{len(valuing)} more so far"
                        )
                        print(f"{future.result()}; {seconds:.0f} s, {left}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def summarise(cells: Sequence[Cell], request: Request, parts: Path) -> dict[str, Any]:
    """Results of each cell and, with several runs, of each moment over all runs."""
    from tacit.cli.inspect import show_credit
    from tacit.cli.terminal import make_console, say
    from tacit.evaluation.credit_agreement import MeasuredGroup, quality

    console = make_console()
    results: dict[str, Any] = {}
    together: dict[str, list[MeasuredGroup]] = {}
    for cell in cells:
        played = json.loads(played_file(parts, cell, request).read_text(encoding="utf-8"))
        files = [group_file(parts, cell, request, n) for n in range(len(played["groups"]))]
        measured = [MeasuredGroup.from_json(json.loads(file.read_text(encoding="utf-8"))) for file in files]
        together.setdefault(cell.moment, []).extend(measured)
        found = quality(measured)
        say(console, f"\n{cell.label}", style="bold")
        metadata = played["circumstances"]
        show_credit(console, found, metadata["radii"], metadata.get("left_out", {}))
        results[cell.label] = {**metadata, **found.to_json()}
    for moment, measured in together.items():
        if len({cell.run for cell in cells}) > 1 and _alike(measured):
            found = quality(measured)
            say(console, f"\nall runs, {moment}", style="bold")
            show_credit(console, found, {}, {})
            results[f"all runs, {moment}"] = found.to_json()
    return {"request": asdict(request), "results": results}


def _alike(measured: Sequence[Any]) -> bool:
    """Whether all groups have the same estimators."""
    return len({(tuple(m.group.credits), tuple(m.group.parts)) for m in measured}) == 1


def play(cell: Cell, request: Request, parts: str) -> int:
    """Play and credit the groups of the checkpoint's next iteration; returns their number. A saved result is reused."""
    file = played_file(Path(parts), cell, request)
    if file.exists():
        return len(json.loads(file.read_text(encoding="utf-8"))["groups"])
    from tacit.config.credit_quality import circumstances, credited_groups, geometries_of
    from tacit.evaluation.credit_agreement import Geometry
    from tacit.runs.trajectories import trajectory_record

    target, setup = _open(cell, request.groups)
    groups = setup.collect(setup.iteration)
    if any(t.condition.note for group in groups for t in group.trajectories):
        raise TacitError(f"{cell.label} puts notes in prompts, which are not recorded; use `tacit inspect credit` instead.")
    geometries = [Geometry.parse(part) for part in request.geometry.split(",") if part.strip()]
    methods = [part.strip() for part in request.methods.split(",") if part.strip()]
    geometries = geometries or geometries_of(target)
    credited, radii, left_out = credited_groups(target, groups, geometries, request.gamma, methods)
    records = [
        {"credited": credit.to_json(), "episodes": [trajectory_record(t) for t in group.trajectories]}
        for group, credit in zip(groups, credited, strict=True)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = circumstances(target, setup, radii, left_out, request.rollouts, request.gamma)
    write_json(file, {"circumstances": metadata, "groups": records})
    return len(records)


def value(cell: Cell, request: Request, parts: str, number: int) -> str:
    """Estimate one group's true advantages and save them with its credit. Returns a line for the log."""
    from tacit.core.types import Group
    from tacit.evaluation.credit_agreement import GroupCredit, MeasuredGroup
    from tacit.evaluation.credit_truth import value_group
    from tacit.runs.trajectories import trajectory_from_record

    began = time.monotonic()
    _, setup = _open(cell, request.groups)
    record = json.loads(played_file(Path(parts), cell, request).read_text(encoding="utf-8"))["groups"][number]
    task = next(task for task in setup.tasks if task.id == record["credited"]["task"])
    group = Group(task, tuple(trajectory_from_record(episode, task) for episode in record["episodes"]))
    truth = value_group(setup, group, request.rollouts, request.gamma, setup.seed)
    measured = MeasuredGroup.of(GroupCredit.from_json(record["credited"]), truth)
    write_json(group_file(Path(parts), cell, request, number), measured.to_json())
    seconds = time.monotonic() - began
    return f"{cell.label}, group {number}: {len(group.steps)} steps, {truth.episodes} continuations, {seconds:.0f} s"


@lru_cache(maxsize=1)
def _open(cell: Cell, groups: int) -> tuple[Any, Any]:
    from tacit.config.agents import open_target
    from tacit.config.credit_quality import rollout_setup

    target = open_target(cell.run, {("engine", "threads"): 1}, cell.checkpoint)
    return target, rollout_setup(target, groups)


def played_file(parts: Path, cell: Cell, request: Request) -> Path:
    return parts / f"{_name(cell, request)}-played.json"


def group_file(parts: Path, cell: Cell, request: Request, number: int) -> Path:
    return parts / f"{_name(cell, request)}-group-{number:03d}.json"


def _name(cell: Cell, request: Request) -> str:
    """Run, checkpoint, and a digest of everything a part depends on, including the run's current state."""
    checkpoint = Path(cell.run) / "checkpoints" / cell.checkpoint / "state.json"
    state = checkpoint.read_text(encoding="utf-8") if checkpoint.exists() else json.dumps(read_settings(Path(cell.run)))
    inputs: Mapping[str, Any] = {**asdict(request), "run": str(Path(cell.run).resolve()), "state": state}
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:10]
    return f"{Path(cell.run).name}-{cell.checkpoint}-{digest}"


if __name__ == "__main__":
    sys.exit(main())
