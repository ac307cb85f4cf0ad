"""Trackers, wordings and parsers must read untrusted text in linear time."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import tacit.core.actions
import tacit.prompts
import tacit.worlds
from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.rollout.worlds import AlarmTimeout, raise_after
from tacit.worlds import WORLDS, get_environment

SIZE, LIMIT_S = 20_000, 3.0
"""A linear reader takes about a hundredth of the limit, a quadratic one several times the limit."""


def find_patterns(package: Any) -> Iterator[re.Pattern[str]]:
    """Every compiled pattern in the modules of this package, also inside lists and tuples."""
    modules = [package]
    for found in pkgutil.walk_packages(getattr(package, "__path__", []), f"{package.__name__}."):
        with contextlib.suppress(ImportError):
            modules.append(importlib.import_module(found.name))
    for module in modules:
        left: list[Any] = list(vars(module).values())
        while left:
            value = left.pop()
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                yield value
            elif isinstance(value, list | tuple):
                left.extend(value)


def literals_of(pattern: re.Pattern[str]) -> list[str]:
    """The pattern's literal parts, in order."""
    found = [""]

    def walk(tree: Any) -> None:
        for kind, value in tree:
            if kind is _constants.LITERAL:
                found[-1] += chr(value)
                continue
            found.append("")
            if kind is _constants.SUBPATTERN or kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
                walk(value[-1])
            elif kind is _constants.BRANCH:
                walk(value[1][0])
            found.append("")

    walk(_parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE))
    return [text for text in found if text]


def long_texts(patterns: Iterator[re.Pattern[str]]) -> Iterator[str]:
    """Texts that make a backtracking pattern restart at every position: the start of a match, repeated."""
    seen = {"a", "a ", " ", "\n", "1", "1 ", ".", ", ", "A", '"', "(", "a 1, ", "-", "'"}
    yield from (text * (SIZE // len(text)) for text in sorted(seen))
    for pattern in patterns:
        parts = literals_of(pattern)
        for end in range(1, len(parts) + 1):
            start, again = "x 1".join(parts[: end - 1]), parts[end - 1]
            for text in (again, f"{again}x 1", f"{again}1"):
                if (start, text) not in seen:
                    seen.add((start, text))
                    yield start + text * (SIZE // len(text))


@pytest.mark.parametrize("text", ["The ", "On the ", "You move the x to the "])
def test_alfworld_reads_long_texts_in_linear_time(text: str) -> None:
    world = get_environment("alfworld")
    read_as_everything(world, world.tasks_of("seen", 1, 0)[0], text * (SIZE // len(text)))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WORLDS))
def test_world_reads_long_texts_in_linear_time(name: str) -> None:
    try:
        world = get_environment(name)
        task = (*world.tasks_of(world.panel_split, 1, 0), Task(name, "", world.families[0], "", 0, "goal"))[0]
    except (TacitError, ImportError) as error:
        pytest.skip(f"{name} cannot be played here: {error}")
    package = importlib.import_module(f"tacit.worlds.{name}")
    for text in long_texts(find_patterns(package)):
        read_as_everything(world, task, text)


def read_as_everything(world: Any, task: Task, text: str) -> None:
    seen = Observation(text, ("look", text))
    transition = Transition(seen, effective=True)
    for described in (task, replace(task, goal=text)):
        for wording in world.wordings.values():
            run_with_limit(text, wording.task, described)
            run_with_limit(text, wording.now, 1, seen, True)
            run_with_limit(text, wording.alone, 1, seen, True)
            run_with_limit(text, wording.turn, 1, seen, text)
        for tracker in world.trackers.values():
            state = run_with_limit(text, tracker.start, described, seen)
            for action in ("look", text):
                after = run_with_limit(text, tracker.update, state, action, transition) if state is not None else None
                if after is not None:
                    run_with_limit(text, tracker.render, after)
                    run_with_limit(text, tracker.signals, state, after)


@pytest.mark.slow
def test_completions_are_parsed_in_linear_time() -> None:
    from tacit.core.actions import FORMATS

    for text in long_texts(find_patterns(tacit.core.actions)):
        for style in FORMATS.values():
            run_with_limit(text, style.parse, text)


def run_with_limit(text: str, call: Any, *arguments: Any) -> Any:
    """The call's result, or None if it raises on this text."""
    try:
        with raise_after(LIMIT_S):
            return call(*arguments)
    except AlarmTimeout:
        pytest.fail(f"{getattr(call, '__qualname__', call)} takes more than {LIMIT_S:g} s for {text[:60]!r} and so on")
    except Exception:
        return None
