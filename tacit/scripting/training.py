"""`tacit.train`: a run from Python. The same recipe, the same refusals, the same run directory as `tacit train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.assembly.checks import check_new_run, prepare
from tacit.assembly.recipe import DEFAULT_METHOD, Document, Recipe, method_name, override, read_document
from tacit.assembly.recipes import run_recipe
from tacit.assembly.resuming import is_finished
from tacit.assembly.running import carry_out
from tacit.core.errors import TacitError
from tacit.runs.directory import SETTINGS, read_settings
from tacit.scripting.keywords import said_by
from tacit.scripting.naming import Method, Worlds, name_method, name_worlds
from tacit.scripting.opened import OpenRun
from tacit.training.events import Callback
from tacit.training.reporting import PlainReporter, Reporter


def train(
    world: Worlds | None = None,
    method: Method | Sequence[Method] | None = None,
    model: str | Path | None = None,
    *,
    config: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Callback | Sequence[Callback] = (),
    quiet: bool = False,
    **settings: Any,
) -> OpenRun:
    """Train a policy and return its run.

    world, method   by name or as objects: an `Environment`; a method's settings class, or an instance of it. Several worlds as
                    a list, with their shares as [(world, share), …]; several methods as a list.
    model           as `--model` takes it
    config          a settings file or a packaged recipe by name; what is said here wins over it
    out             the run directory, which must not hold a run yet; with `resume` one that does is continued, so that a script
                    that was killed is simply started again
    callbacks       functions that are told of every `Event`; one that returns True stops the run
    settings        any of `tacit train --help`: `kl=0.0`, `iterations=20`, `sft={"steps": 200}`, `engine={"device": "cpu"}`
    """
    document = read_document(run_recipe(str(config))) if config is not None else {}
    recipe = Recipe.from_json(_told(document, world, method, model, out, settings))
    begun = (recipe.out / SETTINGS).exists()
    if begun and not resume:
        raise TacitError(
            f"{recipe.out} already holds a run. Go on with it (resume=True, or tacit.open_run({str(recipe.out)!r}).resume()), "
            "or name another `out`."
        )
    prepared = prepare(recipe)
    if begun:
        stored = Recipe.from_json(read_settings(recipe.out))
        if is_finished(recipe.out, stored, prepared.recipe):
            return OpenRun(recipe.out)
    else:
        check_new_run(recipe.out)
    carry_out(prepared, begun, reporter_for(quiet), listed(callbacks))
    return OpenRun(recipe.out)


def go_on(path: Path, said: Mapping[str, Any], callbacks: Callback | Sequence[Callback], quiet: bool) -> None:
    """What is left of the run at this place; `said` may change what a resumed run may change."""
    stored = read_settings(path)
    before, after = Recipe.from_json(stored), Recipe.from_json(override(stored, said_by(said, method_name(stored))))
    if not is_finished(path, before, after):
        carry_out(prepare(replace(after, out=path)), True, reporter_for(quiet), listed(callbacks))


def _told(
    document: Document,
    world: Worlds | None,
    method: Method | Sequence[Method] | None,
    model: str | Path | None,
    out: str | Path | None,
    settings: Mapping[str, Any],
) -> Document:
    said: dict[tuple[str, ...], Any] = {}
    if world is not None:
        said["world",] = name_worlds(world)
    name = method_name(document) if document else DEFAULT_METHOD
    if method is not None:
        name, own = name_method(method)
        schedule = own.pop("schedule", {})
        said["method", "name"] = name
        said |= {("method", key): value for key, value in own.items()}
        said |= {("schedule", key): value for key, value in schedule.items()}
    if model is not None:
        said["model",] = str(model)
    if out is not None:
        said["out",] = str(out)
    return override(document, {**said, **said_by(settings, name)})


def listed(callbacks: Callback | Sequence[Callback]) -> tuple[Callback, ...]:
    found = tuple(callbacks) if isinstance(callbacks, Sequence) else (callbacks,)
    for callback in found:
        if not callable(callback):
            raise TacitError(f"callbacks = {callback!r} must be functions that take an Event.")
    return found


def reporter_for(quiet: bool) -> Callable[[], Reporter]:
    return Silence if quiet else PlainReporter


class Silence:
    """Says nothing."""

    def stage(self, name: str, total: int, done: int) -> None: ...

    def step(self, step: int, metrics: dict[str, float]) -> None: ...

    def say(self, text: str) -> None: ...

    def now(self, text: str) -> None: ...

    def close(self) -> None: ...
