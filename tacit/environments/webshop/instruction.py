"""What a sentence asks for, as far as anybody can read it: the thing, the options with their names, the price.

Find me easy clean backpacks with color: navy, and size: large, and price lower than 40.00 dollars
        the thing ----------     the options -----------------                       the limit
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

_PRICE = re.compile(r"[, ]*(?:and )?price lower than \$?([\d.]+) dollars?\s*$", re.I)
_OPTION = re.compile(r"((?:(?! with )[^:,])+): (.+)")
_BEGINNING = re.compile(r"^(?:find|get|show|buy) (?:me )?", re.I)
_PARTING = re.compile(r", (?:and )?| with | for | and ")
_WORD = re.compile(r"[^\W_]+")
_SAYING_NOTHING = """
a an and are as at be by for from i in is it like looking me my need of on or some that the this to want with
would
"""
_EMPTY = frozenset(_SAYING_NOTHING.split())


@dataclass(frozen=True)
class Wish:
    thing: str
    """as it is told, without options and price"""
    options: Mapping[str, str]
    """by name, where the sentence names them"""
    limit: float | None

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words that count, in their order."""
        return tuple(dict.fromkeys(word for word in words_of(self.thing) if word not in _EMPTY))

    @property
    def parts(self) -> tuple[str, ...]:
        """The thing, and each thing that is said of it."""
        pieces = [piece.strip() for piece in _PARTING.split(self.thing)]
        return tuple(dict.fromkeys(piece for piece in (self.thing, *pieces) if piece))

    def wanted(self, offered: Mapping[str, tuple[str, ...]]) -> Mapping[str, str]:
        """The value of each offered option that the sentence asks for: by the option's name, else by the value itself, the
        longest of those that it mentions."""
        if self.options:
            return self.options
        told = f" {' '.join(words_of(self.thing))} "
        found = {}
        for name, values in offered.items():
            mentioned = [value for value in values if f" {' '.join(words_of(value))} " in told and words_of(value)]
            if mentioned:
                found[name] = max(mentioned, key=len)
        return found


@lru_cache(4096)
def read_wish(sentence: str) -> Wish:
    price = _PRICE.search(sentence)
    rest = sentence[: price.start()] if price else sentence
    thing, options = _options(rest)
    return Wish(_BEGINNING.sub("", thing).strip(), options, _number(price[1]) if price else None)


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("'s", "").replace("’s", ""))


def stem(word: str) -> str:
    """Just enough for `backpacks` to be found in `Backpack`."""
    if word.endswith("ves") and len(word) > 4:
        return word[:-3] + "f"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def _options(told: str) -> tuple[str, dict[str, str]]:
    """Parts ` with name: value, and name: value` off the end."""
    for match in re.finditer(r" with ", told):
        pieces = told[match.end() :].split(", and ")
        named = [_OPTION.fullmatch(piece) for piece in pieces]
        if named[0] is None:
            continue
        options: dict[str, str] = {}
        last = ""
        for piece, option in zip(pieces, named, strict=True):
            if option is None:  # a value that has the separator in it
                options[last] += f", and {piece}"
            else:
                last = option[1].strip()
                options[last] = option[2].strip()
        return told[: match.start()], options
    return told, {}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
