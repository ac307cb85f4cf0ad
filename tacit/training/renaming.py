"""Data augmentation for few demonstrations: replace the names in a turn, consistently in its prompt and its action.

    seen: mug 2 at desk 1  >  take mug 2 from desk 1            as demonstrated
    seen: pen 5 at desk 3  >  take pen 5 from desk 3            renamed

With both versions, a policy must copy names from the prompt. With only the first, it can memorize `mug 2` instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tacit.core.errors import TacitError
from tacit.core.types import Prompt
from tacit.rollout.replay import Turn

EXCHANGED = 0.3
"""share of kinds replaced by another kind; the others stay, since some rules depend on the kind"""
MAX_SHIFT = 12
"""largest shift of the numbers of a kind"""
_WORD = re.compile(r"[a-z]+")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Renaming:
    """New names for one turn."""

    pattern: re.Pattern[str]
    """group 1 is a kind, group 2 its numbers: `drawer 1-3 5`"""
    kinds: Mapping[str, str]
    """kind -> new kind; new kinds are distinct"""
    shifts: Mapping[str, int]
    """kind -> shift added to its numbers, so that ranges stay ranges"""

    @classmethod
    def draw(cls, pattern: re.Pattern[str], text: str, known: Sequence[str], rng: Random) -> Renaming:
        """A random renaming for `text`; new kinds are drawn from `known`."""
        words = set(_WORD.findall(text))
        exchanged = [kind for kind in known if kind in words and rng.random() < EXCHANGED]
        free = [kind for kind in known if kind not in words or kind in exchanged]
        kinds = dict(zip(exchanged, rng.sample(free, len(exchanged)), strict=True))
        numbers: dict[str, list[int]] = {}
        for match in pattern.finditer(text):
            numbers.setdefault(match[1], []).extend(map(int, _NUMBER.findall(match[2])))
        shifts = {kind: rng.randint(1 - min(values), MAX_SHIFT) for kind, values in numbers.items()}
        return cls(pattern, kinds, shifts)

    def apply(self, text: str) -> str:
        shifted = self.pattern.sub(self._shift, text)
        return _WORD.sub(lambda word: self.kinds.get(word[0], word[0]), shifted)

    def _shift(self, match: re.Match[str]) -> str:
        return f"{match[1]} " + _NUMBER.sub(lambda number: str(int(number[0]) + self.shifts[match[1]]), match[2])

    def apply_to(self, prompt: Prompt) -> Prompt:
        change = self.apply
        return replace(
            prompt,
            task=change(prompt.task),
            now=change(prompt.now),
            request=change(prompt.request),
            history=tuple(map(change, prompt.history)),
            task_note=change(prompt.task_note),
            step_note=change(prompt.step_note),
            now_alone=change(prompt.now_alone),
        )


def rename_turns(turns: Sequence[Turn], pattern: re.Pattern[str], rng: Random) -> list[Turn]:
    """A renamed copy of each turn."""
    if any(turn.prompt.conversation is not None for turn in turns):
        raise TacitError("sft.renamed needs plain prompts, but these are conversations. Use --no-chat, or --sft.renamed 0.")
    texts = [f"{turn.prompt.text}\n{turn.action}" for turn in turns]
    known = sorted({match[1] for text in texts for match in pattern.finditer(text)})
    renamed = []
    for turn, text in zip(turns, texts, strict=True):
        renaming = Renaming.draw(pattern, text, known, rng)
        renamed.append(replace(turn, prompt=renaming.apply_to(turn.prompt), action=renaming.apply(turn.action)))
    return renamed
