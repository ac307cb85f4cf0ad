"""Values of settings: from the text of a flag, from a TOML or JSON file, and back. What does not fit its field is refused."""

from __future__ import annotations

import dataclasses
import difflib
import keyword
import math
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tacit.core.errors import TacitError

NONE = "none"
"""how a flag or a TOML file, which has no null, says None"""


def from_text(kind: Any, text: str, where: str) -> Any:
    """The value a flag's text means.

    >>> from_text(tuple[str, ...], "q_proj,v_proj", "--targets")
    ('q_proj', 'v_proj')
    """
    if is_optional(kind):
        return None if text.lower() == NONE else from_text(_inside(kind), text, where)
    if get_origin(kind) is tuple:
        return from_data(kind, [_scalar(k, part.strip()) for k, part in _parts(kind, text)], where)
    return from_data(kind, _scalar(kind, text), where)


def from_data(kind: Any, value: Any, where: str) -> Any:
    """The value a file's entry means; `where` names the setting in the message."""
    origin = get_origin(kind)
    if is_optional(kind):
        return None if value is None or value == NONE else from_data(_inside(kind), value, where)
    if origin is Literal:
        return _choice(get_args(kind), value, where)
    if origin is tuple:
        return _tuple(kind, value, where)
    if kind is Path and isinstance(value, str):
        return Path(value)
    # In Python True is an int; in a settings file it is a mistake.
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind:
        return value
    raise TacitError(f"{where} must be {_words(kind)}, not {value!r}.")


def to_data(value: Any) -> Any:
    """A setting as JSON and TOML can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {spelled(field.name): to_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [to_data(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_data(item) for key, item in value.items()}
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # numpy's or torch's
        plain = value.item()
        # As it prints: float32's 1e-4 is meant as 1e-4, and not as the double next to it, 9.999999747378752e-05.
        return float(str(value[()])) if isinstance(plain, float) and type(value).__module__ == "numpy" else plain
    return value


Tables = Callable[[], Mapping[str, Iterable[str]]]
"""table of a settings file -> its keys; the top level is ''"""


def build(cls: type[Any], data: Any, where: str, default: Any = None, tables: Tables = dict) -> Any:
    """Build a settings object from a table. Missing keys come from `default`, or from the class.

    `tables` are the other tables of the file, for the error about an unknown key."""
    if not isinstance(data, Mapping):
        raise TacitError(f"[{where}] must be a table of settings, not {data!r}.")
    kinds, given = field_types(cls), {}
    for raw, value in data.items():
        key = in_python(raw.replace("-", "_"))
        if key not in kinds:
            raise unknown_key(raw, where, map(spelled, kinds), tables())
        kind, name = kinds[key], f"{where}.{spelled(key)}" if where else spelled(key)
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            # A method's own schedule, not that of schedules in general.
            own = getattr(default, key, None) or _usual(cls, key)
            given[key] = build(kind, value, name, own, tables)
        else:
            given[key] = from_data(kind, value, name)
    return cls(**given) if default is None else dataclasses.replace(default, **given)


def spelled(field: str) -> str:
    """How files and flags write a field: `from`, which Python keeps to itself, is the field `from_`."""
    return field.removesuffix("_")


def in_python(key: str) -> str:
    return f"{key}_" if keyword.iskeyword(key) else key


def _usual(cls: type[Any], key: str) -> Any:
    """What a field is where nothing is said; None where something has to be."""
    field = next(f for f in dataclasses.fields(cls) if f.name == key)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def field_types(cls: type[Any]) -> Mapping[str, Any]:
    """Each field's type, with annotations that are strings looked up."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def unknown_key(key: str, where: str, known: Iterable[str], tables: Mapping[str, Iterable[str]]) -> TacitError:
    """Suggests the table that has this key (`iterations`, `sft_steps`), or the nearest key of this table."""
    plain = key.replace("-", "_")
    names = sorted({*known, *tables.get(where, ())})
    moved = [(t, k) for t, keys in tables.items() for k in keys if t != where and plain in (k, f"{t}_{k}")]
    wrong = f"unknown key `{key}`" + (f" in [{where}]" if where else "")
    if moved:
        table, name = moved[0]
        return TacitError(f"{wrong}; did you mean {f'[{table}] {name}' if table else f'`{name}` at the top level'}?")
    near = difflib.get_close_matches(plain, names, n=1, cutoff=0.5)
    hint = f"; did you mean `{near[0]}`?" if near else "."
    return TacitError(f"{wrong}{hint} Known keys{' there' if where else ''}: {', '.join(names)}.")


def is_optional(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind)


def _inside(kind: Any) -> Any:
    inner = [k for k in get_args(kind) if k is not type(None)]
    return inner[0] if len(inner) == 1 else Union[tuple(inner)]  # noqa: UP007


def _parts(kind: Any, text: str) -> list[tuple[Any, str]]:
    inner = get_args(kind)
    parts = [part for part in text.split(",") if part.strip()]
    kinds = [inner[0]] * len(parts) if len(inner) == 2 and inner[1] is ... else list(inner)
    return list(zip(kinds, parts, strict=False)) + [(str, part) for part in parts[len(kinds) :]]


def _scalar(kind: Any, text: str) -> Any:
    """Text as what it may be; what it is not stays text, for `from_data` to refuse by name."""
    if get_origin(kind) is Literal:
        return next((choice for choice in get_args(kind) if str(choice) == text), text)
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text


def _choice(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value in choices:
        return value
    near = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise TacitError(f"{where} must be one of {', '.join(map(str, choices))}, not {value!r}.{hint}")


def _tuple(kind: Any, value: Any, where: str) -> tuple[Any, ...]:
    inner = get_args(kind)
    if not isinstance(value, list | tuple):
        raise TacitError(f"{where} must be {_words(kind)}, not {value!r}.")
    kinds = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is ... else list(inner)
    if len(kinds) != len(value):
        raise TacitError(f"{where} must be {_words(kind)}, not {len(value)} values.")
    return tuple(from_data(k, v, where) for k, v in zip(kinds, value, strict=True))


def _words(kind: Any) -> str:
    plain = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false", Path: "a path"}
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if len(inner) == 2 and inner[1] is ...:
            return f"a list, each {_words(inner[0])}"
        return f"a list of {len(inner)}, each {_words(inner[0])}"
    return plain.get(kind, f"a {getattr(kind, '__name__', kind)}")
