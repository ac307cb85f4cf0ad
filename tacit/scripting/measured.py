"""`tacit.evaluate`: whoever plays, measured on a fixed panel from Python, as `tacit eval` does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tacit.assembly.measuring import Measured, Sitting
from tacit.assembly.panel_choice import run_of, with_panel
from tacit.assembly.players import READER, READS, Endpoint, Target, open_endpoint, open_loaded
from tacit.assembly.recipe import DEFAULT_METHOD, Said, method_name
from tacit.core.errors import TacitError
from tacit.core.prices import Prices
from tacit.core.types import Task, Trajectory
from tacit.core.world import Expert
from tacit.evaluation.scores import PanelScore
from tacit.modules.players import open_player
from tacit.rollout.episodes import SamplingPolicy
from tacit.rollout.onlookers import NOBODY, Onlooker
from tacit.runs.directory import read_settings
from tacit.runs.trajectories import trajectory_record
from tacit.scripting.keywords import said_by
from tacit.scripting.naming import Method, World, name_method, name_worlds
from tacit.scripting.opened import OpenRun
from tacit.scripting.tables import episode_rows, table, turn_rows

PANEL_SETTINGS = ("split", "tasks", "repeats", "temperature", "top_p", "top_k", "max_steps")
"""settings of [evaluation] that need no section here, as in `tacit eval`"""


@dataclass(frozen=True)
class Evaluation:
    """What came out. `str` of it is the line that a run prints."""

    measured: Measured
    kept: Path | None
    """the file the result is kept in"""

    def __str__(self) -> str:
        return f"success {self.score} on {self.score.panel}"

    @property
    def score(self) -> PanelScore:
        return self.measured.score

    @property
    def success(self) -> float:
        return self.score.success

    @property
    def result(self) -> dict[str, Any]:
        """Everything, as `tacit eval --json` has it."""
        return self.measured.result

    @property
    def trajectories(self) -> list[Trajectory]:
        return self.measured.played

    def turns(self, rows: bool = False) -> Any:
        """One row per turn: a pandas table, or with `rows` plain dicts."""
        found = list(turn_rows("evaluation", 0, self._records))
        return found if rows else table(found)

    def episodes(self, rows: bool = False) -> Any:
        found = list(episode_rows("evaluation", 0, self._records))
        return found if rows else table(found)

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        return [trajectory_record(trajectory) for trajectory in self.trajectories]


def evaluate(
    who: str | Path | OpenRun | SamplingPolicy | Callable[[Task], Expert],
    world: World | None = None,
    method: Method | None = None,
    *,
    checkpoint: str = "",
    like: OpenRun | str | Path | None = None,
    panel: str = "",
    endpoint: str | None = None,
    key_variable: str = "OPENAI_API_KEY",
    concurrency: int = 16,
    timeout_s: float = 120.0,
    ks: Sequence[int] = (),
    prices: Prices | None = None,
    batch: int = 256,
    out: str | Path | None = None,
    fresh: bool = False,
    progress: Callable[[int], None] | None = None,
    **settings: Any,
) -> Evaluation:
    """Play a panel and say how it went.

    who         a run (object, directory, or one of its checkpoints), skill modules, a model, `expert`, `reader`; a policy that
                is loaded; a class of yours with `act`, made anew for each task; or the name of a model at `endpoint`
    like        the run whose world, method and settings a loaded policy is measured with
    world       by name or as an object; a run has its own
    panel       as `tacit list panels` names it, or a file of tasks; else `split`, `tasks` and `families` describe it
    out, fresh  where episodes and result are kept, and whether to play what was played before
    progress    is told how many episodes are over
    settings    of the panel and the sampling (`split`, `tasks`, `repeats`, `temperature`, …), and any that `tacit train` has
    """
    if hasattr(who, "sample") and hasattr(who, "encode_prompt"):
        if checkpoint or endpoint:
            raise TacitError("a loaded policy has its weights already: leave `checkpoint` and `endpoint` out.")
        run = str(like.path if isinstance(like, OpenRun) else like or "")
        meant = with_panel(_said(run, world, method, settings), panel, run)
        target = open_loaded(cast(SamplingPolicy, who), meant, run)
    else:
        if hasattr(who, "act") and not callable(who):
            raise TacitError(f"{who!r} plays one episode; give {type(who).__name__} itself, which is made anew for each task.")
        if like is not None:
            raise TacitError(f"like = {like}: only a loaded policy can be measured as another run is, and {who!r} is none.")
        actor = cast(Callable[[Task], Expert], who) if callable(who) else None
        name = getattr(who, "__name__", "actor") if actor else str(who.path if isinstance(who, OpenRun) else who)
        meant = with_panel(_said(name, world, method, settings), panel, "" if endpoint else name)
        target = _open(name, meant, checkpoint, actor, endpoint, key_variable, concurrency, timeout_s)
    sitting = Sitting(target, tuple(ks), prices, Path(out) if out is not None else None, fresh, meant)
    measured = sitting.play(batch, _Counting(progress) if progress else NOBODY)
    return Evaluation(measured, sitting.keep(measured))


class _Counting(Onlooker):
    """Says how many episodes are over."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress, self._over = progress, 0

    def over(self, place: int, trajectory: Trajectory) -> None:
        self._over += 1
        self._progress(self._over)


def _said(name: str, world: World | None, method: Method | None, settings: dict[str, Any]) -> Said:
    own: dict[str, Any] = {}
    run = run_of(name) if name else None
    known = READS["name"] if name == READER else method_name(read_settings(run)) if run else DEFAULT_METHOD
    said: dict[tuple[str, ...], Any] = {}
    if method is not None:
        known, own = name_method(method)
        own.pop("schedule", None)
        said["method", "name"] = known
    picked = {key: settings.pop(key) for key in PANEL_SETTINGS if key in settings}
    said |= {("method", key): value for key, value in own.items()} | said_by(settings, known)
    said |= {("evaluation", key): value for key, value in picked.items()}
    if world is not None:
        said["world",] = name_worlds(world)
    return said


def _open(
    name: str,
    said: Said,
    checkpoint: str,
    actor: Callable[[Task], Expert] | None,
    endpoint: str | None,
    key_variable: str,
    concurrency: int,
    timeout_s: float,
) -> Target:
    if endpoint is None:
        return open_player(name, said, checkpoint, actor)
    if checkpoint:
        raise TacitError(f"checkpoint = {checkpoint!r} is for runs; an endpoint serves what it serves.")
    return open_endpoint(Endpoint(endpoint, name, key_variable, concurrency, timeout_s), said)
