"""Values of settings from flags, TOML and JSON, and back. A value of the wrong type raises."""

from __future__ import annotations

import dataclasses
import difflib
import keyword
import math
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tacit.core.errors import TacitError, first_line

NONE = "none"  # None in a flag or a TOML file


def from_text(kind: Any, text: str, where: str) -> Any:
    """Parse a flag's text.

    >>> from_text(tuple[str, ...], "q_proj,v_proj", "--targets")
    ('q_proj', 'v_proj')
    """
    if is_optional(kind):
        return None if text.lower() == NONE else from_text(_inside(kind), text, where)
    if get_origin(kind) in (Union, types.UnionType):
        return _either(from_text, kind, text, where)
    if get_origin(kind) is tuple:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        kinds = [*_item_kinds(kind, len(parts)), *[str] * len(parts)]  # `from_data` refuses surplus items
        return from_data(kind, [_scalar(k, part) for k, part in zip(kinds, parts, strict=False)], where)
    return from_data(kind, _scalar(kind, text), where)


def from_data(kind: Any, value: Any, where: str) -> Any:
    """Check a file's value; `where` names the setting in errors."""
    origin = get_origin(kind)
    if is_optional(kind):
        return None if value is None or value == NONE else from_data(_inside(kind), value, where)
    if origin in (Union, types.UnionType):
        return _either(from_data, kind, value, where)
    if origin is Literal:
        choices = get_args(kind)
        if value in choices:
            return value
        near = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise TacitError(f"{where} must be one of {', '.join(map(str, choices))}, not {value!r}.{hint}")
    if origin is tuple and isinstance(value, list | tuple):
        kinds = _item_kinds(kind, len(value))
        if len(kinds) != len(value):
            raise TacitError(f"{where} must be {_words(kind)}, not {len(value)} values.")
        return tuple(from_data(k, v, where) for k, v in zip(kinds, value, strict=True))
    if kind is Path and isinstance(value, str):
        return expand_path(value)
    # In Python True is an int.
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise TacitError(f"{where} must be {_words(kind)}, not {value!r}.")


def expand_path(text: str) -> Path:
    """A path as written by a user; a leading `~` is the home directory, which a shell leaves alone in `--out=~/x`."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no such user
        raise TacitError(f"{text}: {first_line(error)}") from error


def to_data(value: Any) -> Any:
    """A setting as JSON and TOML values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {file_name(field.name): to_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [to_data(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_data(item) for key, item in value.items()}
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # numpy's or torch's
        plain = value.item()
        # Use the printed value: float32's 1e-4 means 1e-4, not 9.999999747378752e-05.
        return float(str(value[()])) if isinstance(plain, float) and type(value).__module__ == "numpy" else plain
    return value


def flatten(document: Mapping[str, Any], place: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every value of nested tables by its path: ("schedule", "lr") -> 1e-4."""
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in document.items():
        flat |= flatten(value, (*place, key)) if isinstance(value, Mapping) else {(*place, key): value}
    return flat


Tables = Callable[[], Mapping[str, Iterable[str]]]  # table of a settings file -> its keys; the top level is ''


def build(cls: type[Any], data: Any, where: str, default: Any = None, tables: Tables = dict) -> Any:
    """Build a settings object from a table. Missing keys come from `default`, or from the class.

    `tables` are the other tables of the file, for the error about an unknown key."""
    if not isinstance(data, Mapping):
        raise TacitError(f"[{where}] must be a table of settings, not {data!r}.")
    kinds, kwargs = field_types(cls), {}
    for raw, value in data.items():
        key = field_name(raw.replace("-", "_"))
        if key not in kinds:
            raise unknown_key(raw, where, map(file_name, kinds), tables(), value if isinstance(value, Mapping) else ())
        kind, name = kinds[key], f"{where}.{file_name(key)}" if where else file_name(key)
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            # The method's own default schedule, not the class's.
            own = getattr(default, key, None) or field_default(cls.__dataclass_fields__[key])
            kwargs[key] = build(kind, value, name, None if own is dataclasses.MISSING else own, tables)
        else:
            kwargs[key] = from_data(kind, value, name)
    return cls(**kwargs) if default is None else dataclasses.replace(default, **kwargs)


def file_name(field: str) -> str:
    """A field's name in files and flags: the field `from_` is written `from`."""
    return field.removesuffix("_")


def field_name(key: str) -> str:
    return f"{key}_" if keyword.iskeyword(key) else key


def field_default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def field_types(cls: type[Any]) -> Mapping[str, Any]:
    """Field -> its type, with string annotations resolved."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


NAMES_ELSEWHERE = {
    "learning_rate": "lr", "num_generations": "group_size", "rollouts": "group_size", "batch_size": "groups",
    "train_batch_size": "groups", "num_steps": "iterations", "total_steps": "iterations", "num_train_epochs": "iterations",
    "max_new_tokens": "max_tokens", "max_completion_length": "max_tokens", "max_turns": "max_steps", "beta": "kl",
    "kl_coef": "kl", "kl_beta": "kl", "entropy_coef": "entropy", "output_dir": "out", "env": "world",
}  # fmt: skip
"""names in other libraries -> names here"""


def unknown_key(
    key: str, where: str, known: Iterable[str], tables: Mapping[str, Iterable[str]], inner: Iterable[str] = ()
) -> TacitError:
    """The error for an unknown key. It suggests the table that has this key (`iterations`, `sft_steps`) or the keys inside it
    (`[train] iterations`), or else the nearest key of this or another table (`iteration`)."""
    plain = key.replace("-", "_")
    names = sorted({*known, *tables.get(where, ())})
    if not any(plain in keys for keys in tables.values()):
        plain = NAMES_ELSEWHERE.get(plain, plain)
    moved = [(t, k) for t, keys in tables.items() for k in keys if t != where and plain in (k, f"{t}_{k}")]
    moved = [] if plain in names else moved
    wrong = f"unknown key `{key}`" + (f" in [{where}]" if where else "")
    if moved:
        table, name = moved[0]
        return TacitError(f"{wrong}; did you mean {f'[{table}] {name}' if table else f'`{name}` at the top level'}?")
    near = difflib.get_close_matches(plain, names, n=1, cutoff=0.75)
    fits = [
        (t, m[0]) for i in inner for t, keys in tables.items() if t and (m := difflib.get_close_matches(i, [*keys], 1, 0.8))
    ]
    if fits and not near:
        return TacitError(f"{wrong}; did you mean [{fits[0][0]}] {fits[0][1]}?")
    if not near:
        elsewhere: dict[str, str] = {}
        for table, keys in tables.items():
            for name in keys if table and table != where else ():
                elsewhere.setdefault(name, table)
        if matches := difflib.get_close_matches(plain, elsewhere, n=1, cutoff=0.8):
            return TacitError(f"{wrong}; did you mean [{elsewhere[matches[0]]}] {matches[0]}?")
        near = difflib.get_close_matches(plain, names, n=1, cutoff=0.5)
    hint = f"; did you mean `{near[0]}`?" if near else "."
    return TacitError(f"{wrong}{hint} Known keys{' there' if where else ''}: {', '.join(names)}.")


def is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind)


def _inside(kind: Any) -> Any:
    inner = [k for k in get_args(kind) if k is not type(None)]
    return inner[0] if len(inner) == 1 else Union[tuple(inner)]  # noqa: UP007


def _item_kinds(kind: Any, count: int) -> list[Any]:
    """The type of each item of a tuple; `tuple[int, ...]` repeats its type `count` times."""
    inner = get_args(kind)
    return [inner[0]] * count if inner[-1] is ... else list(inner)


def _scalar(kind: Any, text: str) -> Any:
    """Text as an int, float or choice if it is one; else the text, for `from_data` to refuse."""
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == text), text)
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text


def _either(read: Callable[[Any, Any, str], Any], kind: Any, value: Any, where: str) -> Any:
    """Read the value as the first type of the union that fits."""
    for inner in get_args(kind):
        with suppress(TacitError):
            return read(inner, value, where)
    raise TacitError(f"{where} must be {' or '.join(map(_words, get_args(kind)))}, not {value!r}.")


def _words(kind: Any) -> str:
    plain = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false", Path: "a path"}
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        return f"a list{'' if inner[-1] is ... else f' of {len(inner)}'}, each {_words(inner[0])}"
    return plain.get(kind, f"a {getattr(kind, '__name__', kind)}")
