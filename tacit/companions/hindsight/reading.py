"""Reading an analyzer's answer: leniently as to form, strictly as to content."""

from __future__ import annotations

import json
import re

from tacit.core.skills import Skills

_FENCE = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
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
        if not str(key).strip().isdecimal() or not int(key) < steps:
            raise Unusable(f"step_skills has {str(key)[:40]!r}, and the episode the steps 0 to {steps - 1}")
        by_step[int(key)] = _text(value, f"step_skills[{int(key)}]")
    kept = dict(sorted(by_step.items())[:most])
    return Skills(episode, kept, summary.strip() if isinstance(summary, str) else "")


def _object(answer: str) -> dict:
    fenced = _FENCE.search(answer)
    text = fenced.group(1) if fenced else answer
    first, last = text.find("{"), text.rfind("}")
    if first < 0 or last < first:
        raise Unusable(f"no JSON object in {answer[:60]!r}")
    text = text[first : last + 1]
    for candidate in (text, _TRAILING_COMMA.sub(r"\1", text)):
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    raise Unusable(f"not JSON: {text[:60]!r}")


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Unusable(f"{field} is {value!r:.40}, not a sentence")
    if len(value) > LONGEST_SKILL:
        raise Unusable(f"{field} has {len(value)} characters, more than {LONGEST_SKILL}")
    return value.strip()
