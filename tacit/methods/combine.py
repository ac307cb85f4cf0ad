"""Combined methods: `reuserl+bipace` is GRPO with the changes of both (core/method.py).

Settings that several methods have get one value. The first rule that applies decides, in whatever order they are named:

    1. the value the user gave                    --gamma 0.9
    2. the default of the leading method          constant_context, ppo, gspo and cispo replace what the others add to
    3. the default that differs from GRPO's       reuserl's invalid_penalty, bipace's learning rate
    4. otherwise `build` refuses, and asks for a value

A default equal to GRPO's does not count as a preference, not even the leading method's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any, ClassVar, Self, get_type_hints

from tacit.core.bounds import check_bounds
from tacit.core.errors import TacitError
from tacit.core.method import NO_RESOURCES, Base, Context, Method, Resources, Schedule, check_conflicts, compose
from tacit.core.world import Environment
from tacit.methods.grpo import GRPO
from tacit.prompts.history import PromptSettings

TABLES: Mapping[str, type[Any]] = {"prompt": PromptSettings, "schedule": Schedule}
"""nested settings, combined field by field"""


@dataclasses.dataclass(frozen=True)
class Undecided:
    """The value of a setting for which two methods have different defaults and neither leads."""

    wanted: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return " or ".join(f"{value} ({name})" for name, value in self.wanted)


@dataclasses.dataclass(frozen=True)
class CombinedMethod(GRPO):
    """Base class of the classes that `combine` makes."""

    member_classes: ClassVar[Mapping[str, type[GRPO]]] = {}
    """classes of the combined methods, by name"""

    def undecided(self) -> dict[str, Undecided]:
        values = {
            f.name: getattr(settings, f.name) for settings in (self, self.prompt, self.schedule) for f in fields(settings)
        }
        return {name: value for name, value in values.items() if isinstance(value, Undecided)}

    def members(self) -> dict[str, GRPO]:
        """Each method with the combined settings."""
        return {
            name: cls(**{field.name: getattr(self, field.name) for field in fields(cls)})
            for name, cls in self.member_classes.items()
        }

    def context(self, world: Environment) -> Context:
        own = [name for name, cls in self.member_classes.items() if cls.context is not GRPO.context]
        if len(own) > 1:
            raise TacitError(f"{own[0]!r} and {own[1]!r} cannot be combined: both replace the context.")
        return self.members()[own[0]].context(world) if own else super().context(world)

    def build(self, world: Environment, resources: Resources = NO_RESOURCES) -> Method:
        check_bounds(self)
        defaults = {name: cls().changes(world, NO_RESOURCES) for name, cls in self.member_classes.items()}
        check_conflicts(defaults)
        for blind in (name for name, cls in self.member_classes.items() if cls.ignores_rewards):
            for other, parts in defaults.items():
                if other != blind and any(part.piece in ("rewards", "credits", "comparison") for part in parts):
                    lost = "the other's changes to rewards or credit would have no effect"
                    raise TacitError(f"{blind!r} and {other!r} cannot be combined: {blind} ignores rewards, so {lost}.")
        for name, value in self.undecided().items():
            flag = f"--{name.replace('_', '-')}"
            raise TacitError(f"{self.name!r}: {name} would be {value}; set it with {flag}.")
        changes = {name: member.changes(world, resources) for name, member in self.members().items()}
        return compose(self.name, self.context(world), self.schedule, self.parts(world), changes)

    def fit_to_model(self, base: Base, explicit: frozenset[str]) -> tuple[Self, tuple[str, ...]]:
        if self.undecided():  # `build` refuses them, after its other checks
            return self, ()
        settings, notes = self, dict.fromkeys(self._decided(explicit))
        for name in self.member_classes:
            before = settings.members()[name]
            after, more = before.fit_to_model(base, explicit)
            own = {f.name: getattr(after, f.name) for f in fields(after) if getattr(after, f.name) != getattr(before, f.name)}
            settings, notes = replace(settings, **own), notes | dict.fromkeys(more)
        return settings, tuple(notes)

    def entry_warnings(self, policies: frozenset[str]) -> tuple[str, ...]:
        return tuple(warning for member in self.members().values() for warning in member.entry_warnings(policies))

    def _decided(self, explicit: frozenset[str]) -> list[str]:
        """Notes on settings whose combined default differs from the default of a member."""
        notes = []
        paths, usual = list[Path](), type(self)()
        for field in fields(self):
            inner = TABLES.get(field.name)
            paths += [(field.name, own.name) for own in fields(inner)] if inner else [(field.name,)]
        for path in paths:
            value, chosen = _leaf(self, path), _leaf(usual, path)
            others = {n: v for n, v in _wanted(path, self.member_classes).items() if v != value}
            if path[-1] not in explicit and others and value == chosen:
                notes.append(f"{path[-1]} = {value} ({', '.join(f'{own} in {name}' for name, own in others.items())})")
        return notes


@cache
def combine(names: tuple[str, ...], classes: tuple[type[Any], ...]) -> type[CombinedMethod]:
    """The settings class of several methods combined."""
    member_classes = dict(zip(names, classes, strict=True))
    if len(member_classes) < len(names):
        raise TacitError(f"{'+'.join(names)}: each method can be named only once.")
    for name, cls in member_classes.items():
        if not (isinstance(cls, type) and issubclass(cls, GRPO)) or cls.build is not GRPO.build:
            raise TacitError(
                f"{name!r} cannot be combined: it overrides `build`. Subclass GRPO and return what it adds and replaces "
                "from `changes` (tacit/core/method.py)."
            )
    shared: dict[str, tuple[Any, Any]] = {}
    classes_by_name: dict[str, type[GRPO]] = {"grpo": GRPO, **member_classes}
    for name, cls in classes_by_name.items():
        hints = get_type_hints(cls, include_extras=True)
        for field in fields(cls):
            kind = shared.setdefault(field.name, (hints[field.name], name))
            if kind[0] != hints[field.name] and field.name not in GRPO.__dataclass_fields__:
                raise TacitError(
                    f"{kind[1]!r} and {name!r} cannot be combined: both have a setting {field.name!r}, with different types."
                )
    combined = [(field, kind, _combined_field(field, member_classes)) for field, (kind, _) in shared.items()]
    doc = " ".join((cls.__doc__ or "").strip().splitlines()[0] for cls in classes if cls.__doc__)
    names_in_order = "+".join(names)
    namespace = {"__doc__": doc, "name": names_in_order, "member_classes": member_classes, "__module__": __name__}
    return dataclasses.make_dataclass(
        f"CombinedMethod[{names_in_order}]", combined, bases=(CombinedMethod,), namespace=namespace, frozen=True
    )


Path = tuple[str, ...]
"""("kl",), ("schedule", "lr"), ("prompt", "history")"""


def _leaf(settings: Any, path: Path) -> Any:
    for name in path:
        settings = getattr(settings, name, MISSING)
    return settings


def _combined_field(name: str, member_classes: Mapping[str, type[GRPO]]) -> Any:
    if name in TABLES:
        table = TABLES[name]
        value = table(**{f.name: _choose(_wanted((name, f.name), member_classes), member_classes) for f in fields(table)})
    else:
        value = _choose(_wanted((name,), member_classes), member_classes)
    return dataclasses.field(default_factory=lambda: value)


def _wanted(path: Path, member_classes: Mapping[str, type[GRPO]]) -> dict[str, Any]:
    """Each method's default of a setting. Defaults equal to GRPO's count only if no method has another."""
    usual = _leaf(GRPO(), path)
    wishes = {method: _leaf(cls(), path) for method, cls in member_classes.items()}
    own = {method: value for method, value in wishes.items() if value is not MISSING and value != usual}
    return own or ({"grpo": usual} if usual is not MISSING else {})


def _choose(wanted: Mapping[str, Any], member_classes: Mapping[str, type[GRPO]]) -> Any:
    leading = {name: value for name, value in wanted.items() if name in member_classes and member_classes[name].leads}
    candidates = leading or wanted
    values = list(candidates.values())
    if all(value == values[0] for value in values):
        return values[0]
    return Undecided(tuple(sorted(candidates.items())))
