"""Settings dataclasses as command-line flags: each leaf field is a flag, and the string under it is its help.

`--kl 0.01`, `--sft.steps 100`, `--engine.lora-targets q_proj,v_proj`, `--engine.value-head` / `--no-engine.value-head`
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from tacit.config.recipe import DEFAULT_ENGINE, DEFAULT_METHOD, DEFAULT_MODEL, METHOD_TABLES
from tacit.config.values import (
    NAMES_ELSEWHERE,
    NONE,
    expand_path,
    field_default,
    field_types,
    file_name,
    from_text,
    is_optional,
)
from tacit.core.bounds import BASIC, check_value
from tacit.core.errors import TacitError
from tacit.core.trust import FLAG, HELP
from tacit.engines import engines_with, get_engine
from tacit.engines.models.tiny import TINY_SIZES, TinySettings
from tacit.methods import REGISTRY, get_method
from tacit.methods.combine import CombinedMethod
from tacit.methods.grpo import GRPO
from tacit.training.settings import TrainSettings


@dataclass(frozen=True)
class Option:
    name: str  # without dashes: `group-size`, `sft.steps`
    place: tuple[str, ...]  # path in the document: ("schedule", "group_size")
    kind: Any  # the field's type
    default: Any
    help: str
    basic: bool = True  # shown by plain `--help`

    @property
    def flag(self) -> str:
        return f"--{self.name}"


def options_of(
    settings: type[Any] | Any, place: tuple[str, ...] = (), prefix: str = "", only: Iterable[str] | None = None
) -> list[Option]:
    """One option per field of a settings class. An instance may be given instead; its values are the defaults. A field that is
    itself a settings class becomes a section, whose flags have its name as a prefix."""
    cls: Any = settings if isinstance(settings, type) else type(settings)
    if not dataclasses.is_dataclass(settings):
        raise TacitError(f"{cls.__name__} has no settings to read: it must be a dataclass.")
    docs, kinds, hints = field_docs(cls), field_types(cls), get_type_hints(cls, include_extras=True)
    options = []
    for field in dataclasses.fields(cls):
        if only is not None and field.name not in only:
            continue
        default = field_default(field) if settings is cls else getattr(settings, field.name)
        if dataclasses.is_dataclass(kinds[field.name]):
            inner = kinds[field.name] if default is dataclasses.MISSING else default
            options += options_of(inner, (*place, field.name), f"{prefix}{field.name}.")
            continue
        name = f"{prefix}{file_name(field.name)}".replace("_", "-")
        basic = BASIC in getattr(hints[field.name], "__metadata__", ())
        options.append(
            Option(name, (*place, file_name(field.name)), kinds[field.name], default, docs.get(field.name, ""), basic)
        )
    return options


@cache
def field_docs(cls: type[Any]) -> Mapping[str, str]:
    """Field -> the string literal under it, inherited ones included; subclasses override."""
    docs: dict[str, str] = {}
    members: Iterable[Any] = cls.member_classes.values() if issubclass(cls, CombinedMethod) else ()
    for member in members:  # a combined method has no source of its own
        docs = {**field_docs(member), **docs}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # no source file: defined interactively, or not shipped
            continue
        body = next(node for node in tree.body if isinstance(node, ast.ClassDef)).body
        for node, below in pairwise(body):
            match node, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises TacitErrors, suggests the nearest flag, and treats `_` and `-` alike.

    With `brief` (the commands that train), `--help` shows the basic settings and `--help all` shows all of them. The error for
    a flag of another method then names that method. `imports`: accept --trust-code, which `main` has already read."""

    def __init__(
        self, command: str, summary: str, brief: bool = False, add_help: bool = True, imports: bool = True, **more: Any
    ) -> None:
        super().__init__(prog=f"tacit {command}", description=summary, allow_abbrev=False, add_help=False, **more)
        self._command, self.brief = command, brief
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)  # also -1e-4
        self._options: dict[str, Option] = {}
        self._bounds: dict[str, Any] = {}  # flag -> bounds of its value
        self.register("type", Path, expand_path)  # used for every argument with type=Path
        if add_help:
            text = "show the basic options, or all of them" if brief else "show this help"
            self.add_argument("-h", "--help", nargs="?" if brief else 0, action=_Help, metavar="all", help=text)
            if imports:
                self.add_argument(FLAG, action="store_true", help=HELP)

    def flag(
        self, name: str, default: Any, help: str, metavar: str | None = "N", group: Any = None, bound: Any = None, **more: Any
    ) -> None:
        """Add a flag that is not a setting. Its type is that of `default`; False makes a switch. A type as `default` means no
        default, None means text without a default. `bound`: an annotation of core/bounds.py."""
        if default is False:
            (group or self).add_argument(name, action="store_true", help=help, **more)
            return
        kind = default if isinstance(default, type) else str if default is None else type(default)
        if isinstance(default, int | float) and "default" not in help:
            help += f" (default: {default:g})"
        if bound is not None:
            self._bounds[name] = bound
        start = None if default is kind else default
        (group or self).add_argument(name, type=kind, default=start, metavar=metavar, help=help, **more)

    def add_options(self, title: str, options: Sequence[Option], description: str = "", hidden: bool = False) -> None:
        """Add settings as a group of flags. `hidden`: accept them, but leave them out of `--help`."""
        group = self.add_argument_group(title, description or None)
        for option in options:
            if option.name in self._options or option.flag in self._option_string_actions:
                raise TacitError(f"two settings share the flag {option.flag}: {'.'.join(option.place)} is one of them.")
            self._options[option.name] = option
            help = (option.help + _shown_default(option.default, option.help)).strip().replace("%", "%%")
            common: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS}
            common["help"] = argparse.SUPPRESS if hidden else help
            if option.kind is bool:
                group.add_argument(option.flag, action=argparse.BooleanOptionalAction, **common)
            else:
                read = partial(from_text, option.kind, where=option.flag)
                group.add_argument(option.flag, type=read, metavar=_metavar(option.kind), **common)

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, dict[tuple[str, ...], Any]]:
        """(arguments of the command itself, settings by path)"""
        arguments, left = self.parse_known_args([_use_dashes(word) for word in argv])
        if left:
            self._refuse(left)
        for flag, bound in self._bounds.items():
            check_value(getattr(arguments, flag.removeprefix("--").replace("-", "_")), bound, flag)
        overrides: dict[tuple[str, ...], Any] = {}
        for name, option in self._options.items():
            if hasattr(arguments, name):
                overrides[option.place] = getattr(arguments, name)
                delattr(arguments, name)
        return arguments, overrides

    def as_flags(self, overrides: Mapping[tuple[str, ...], Any]) -> list[str]:
        """Settings by path as the words of a command line: the inverse of `parse`."""
        words: list[str] = []
        for option in self._options.values():
            value = overrides.get(option.place, dataclasses.MISSING)
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{option.name}")
            elif value is not dataclasses.MISSING:
                text = NONE if value is None else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                words += [option.flag, text]
        return words

    def error(self, message: str) -> NoReturn:
        raise TacitError(f"{message}. See `tacit {self._command} --help`.")

    def nearest(self, flag: str) -> str | None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        # Prefer `--sft.steps` for `--steps`, whatever the edit distance.
        tails = [name for name in known if name.split(".")[-1] == flag.lstrip("-")]
        close = difflib.get_close_matches(flag, known, n=1, cutoff=0.6)
        alias = "--" + NAMES_ELSEWHERE.get(flag.lstrip("-").replace("-", "_"), "").replace("_", "-")
        return next(iter([*tails, *([alias] if alias in known else []), *close]), None)

    def _refuse(self, left: Sequence[str]) -> NoReturn:
        flag = next((word.partition("=")[0] for word in left if word.startswith("-")), None)
        if flag is None:
            raise TacitError(f"unexpected argument {left[0]!r}. See `tacit {self._command} --help`.")
        if self.brief and (owners := methods_with(flag.replace("--no-", "--", 1))):
            raise TacitError(f"unknown flag {flag}. It belongs to {', '.join(owners)}: add --method {owners[0]}.")
        section, _, setting = flag.removeprefix("--").partition(".")
        if section == "engine" and (owners := engines_with(setting.replace("-", "_"))):
            raise TacitError(f"unknown flag {flag}. It belongs to {', '.join(owners)}: add --engine {owners[0]}.")
        near = self.nearest(flag)
        raise TacitError(f"unknown flag {flag}. {f'Did you mean {near}?' if near else f'See `tacit {self._command} --help`.'}")


def _use_dashes(word: str) -> str:
    """`--group_size=4` -> `--group-size=4`; values stay."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


class _Help(argparse.Action):
    """`--help` of a brief parser hides the settings that are not basic; `--help all` shows them."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        hidden = {o.name for o in parser._options.values() if not o.basic} if parser.brief and values != "all" else set()
        for action in parser._actions:
            if action.dest in hidden:
                action.help = argparse.SUPPRESS
        if hidden:
            parser.epilog = f"`{parser.prog} --help all` shows {len(hidden)} more options. {parser.epilog or ''}"
        parser.print_help()
        parser.exit()


def _shown_default(default: Any, help: str) -> str:
    """`(default: 0.1)`; nothing for an unset value whose meaning the help gives."""
    explained = default in ("", None) and any(word in help for word in ("empty is", "unset", "default", "none:"))
    if default is dataclasses.MISSING or explained:
        return ""
    if isinstance(default, tuple):
        default = ",".join(map(str, default))
    if isinstance(default, bool):
        default = "on" if default else "off"
    return f" (default: {default if default not in ('', None) else 'none'})"


def _metavar(kind: Any) -> str:
    if is_optional(kind):
        return _metavar(next(k for k in get_args(kind) if k is not type(None)))
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        return f"{_metavar(inner[0])},…" if len(inner) == 2 and inner[1] is ... else ",".join(map(_metavar, inner))
    if get_origin(kind) in (Union, types.UnionType):
        return "VALUE"
    return {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}.get(kind, "VALUE")


def peek(command: str, argv: Sequence[str], *flags: str) -> tuple[argparse.Namespace, list[str]]:
    """(values of these flags, all other words). Parsed first, because they decide which other flags exist."""
    parser = Parser(command, "", add_help=False)
    for flag in flags:
        parser.add_argument(flag)
    return parser.parse_known_args(argv)


# All settings of a run as flags.

TOP_OPTIONS = (
    Option("world", ("world",), str, dataclasses.MISSING, "world: a name from `tacit list worlds`, or your own as "
           "package.module:OBJECT or path/to/file.py:OBJECT; several with shares: alfworld=0.75,countdown=0.25"),
    Option("method", ("method", "name"), str, DEFAULT_METHOD, "method: a name from `tacit list methods`, several as a+b, "
           "or your own as package.module:Class or path/to/file.py:Class"),
    Option("model", ("model",), str, DEFAULT_MODEL, "model: tiny-base (pretrained, packaged), tiny (from scratch), "
           "a checkpoint directory, or a hub id (owner/name)"),
    Option("engine", ("engine", "name"), str, DEFAULT_ENGINE, "engine that loads, trains and samples the model: a name from "
           "`tacit list engines`, or your own as package.module:OBJECT or path/to/file.py:OBJECT"),
    Option("tests", ("world", "tests"), str, dataclasses.MISSING, "with --world code: shown (default), or hidden, which "
           "removes the tests that decide success from the repository", False),
    Option("sandbox", ("world", "sandbox"), str, dataclasses.MISSING, "with --world code: isolated (default), or none, which "
           "runs the agent's commands without isolation", False),
    Option("folder", ("world", "folder"), str, dataclasses.MISSING, "with --world code: directory of tasks from `tacit prepare "
           "code` instead of the packaged ones", False),
)  # fmt: skip
RUN_OPTION = Option("out", ("out",), Path, "runs/WORLD-METHOD-SEED", "run directory; it must not contain a run")


def method_options(name: str) -> list[Option]:
    """The flags of a method, its prompt and its schedule, without a prefix. Fields that GRPO lacks are basic."""
    shared = {field.name for field in dataclasses.fields(GRPO)}
    own, inner = [], []
    for option in options_of(get_method(name), ("method",)):
        if option.place[1] in METHOD_TABLES:
            inner.append(replace(option, name=option.place[-1].replace("_", "-"), place=option.place[1:]))
        else:
            own.append(replace(option, basic=option.basic or option.place[1] not in shared))
    return own + inner


def methods_with(flag: str) -> list[str]:
    return [name for name in REGISTRY.builtin if any(o.flag == flag for o in method_options(name))]


def train_options() -> list[Option]:
    """Fields of TrainSettings outside its sections."""
    return [option for option in options_of(TrainSettings) if len(option.place) == 1]


def section_options(model: str = DEFAULT_MODEL, engine: str = DEFAULT_ENGINE) -> dict[str, list[Option]]:
    """Flags with a prefix, by section. Tiny sizes default to those of the model."""
    nested = [option for option in options_of(TrainSettings) if len(option.place) > 1]
    sections = {section: [o for o in nested if o.place[0] == section] for section in ("sft", "evaluation")}
    sections["engine"] = options_of(get_engine(engine).settings, ("engine",), "engine.")
    sections["tiny"] = options_of(TINY_SIZES.get(model, TinySettings), ("tiny",), "tiny.")
    return sections
