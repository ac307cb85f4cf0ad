"""Reading an analyzer's answer: leniently as to form, strictly as to content."""

from __future__ import annotations

import json
import re

from tacit.core.skills import Skills
from tacit.core.text import is_unicode

_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_STEP = re.compile(r"\s*0*([0-9]{1,9})\s*")
LONGEST_ANSWER = 40_000
"""characters that are read of an answer, its last ones: far more than its tokens could be"""
LONGEST_SKILL = 2000
"""characters; what is longer is no skill"""


class Unusable(Exception):
    """An answer that says nothing."""


def read_skills(answer: str, steps: int, most: int) -> Skills:
    """The skills of an episode of so many steps; the first `most` critical steps, in their order."""
    found = _object(answer)
    episode = _text(found.get("episode_skill"), "episode_skill")
    summary = found.get("episode_summary")
    told = found.get("step_skills") or {}
    if not isinstance(told, dict):
        raise Unusable(f"step_skills is a {type(told).__name__}, not an object")
    by_step: dict[int, str] = {}
    for key, value in told.items():
        number = _STEP.fullmatch(key)
        if number is None or not int(number[1]) < steps:
            raise Unusable(f"step_skills has {key[:40]!r}, and the episode the steps 0 to {steps - 1}")
        by_step[int(number[1])] = _text(value, f"step_skills[{int(number[1])}]")
    kept = dict(sorted(by_step.items())[:most])
    return Skills(episode, kept, summary.strip() if isinstance(summary, str) and is_unicode(summary) else "")


def _object(answer: str) -> dict:
    """The last object that has a skill, whatever stands around it: a fence, a remark, a thought with drafts in it."""
    said = answer[-LONGEST_ANSWER:]
    if not 0 <= said.find("{") < said.rfind("}"):
        raise Unusable(f"no JSON object in {answer[:60]!r}")
    found = [_objects(text) for text in (said, _TRAILING_COMMA.sub(r"\1", said))]
    for objects in found:
        if skilled := [one for one in objects if "episode_skill" in one]:
            return skilled[-1]
    if not any(found):
        raise Unusable(f"not JSON: {said[said.find('{') :][:60]!r}")
    return next(filter(None, found))[0]


def _objects(text: str) -> list[dict]:
    found, place = [], text.find("{")
    while place >= 0:
        end = place + 1
        try:
            one, after = json.JSONDecoder().raw_decode(text, place)
            found.append(one)
            end = after if "episode_skill" in one else end  # else it may be wrapped: look inside
        except (ValueError, RecursionError):
            pass
        place = text.find("{", end)
    return found


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unusable(f"{field} is {value!r:.40}, not a sentence")
    if not is_unicode(value):
        raise Unusable(f"{field} has half a character (a lone surrogate) in it")
    if len(value) > LONGEST_SKILL:
        raise Unusable(f"{field} has {len(value)} characters, more than {LONGEST_SKILL}")
    return value.strip()
