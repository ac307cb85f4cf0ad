"""Which trajectories a page embeds, and what it says of each step. What is left out is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from tacit.report.known import Known
from tacit.report.markup import Child, Markup, data_block, join, tag
from tacit.report.numbers import count, is_number
from tacit.report.prompts import Sections, prompts_of
from tacit.report.run_files import Episodes, Record

MOST_TRAJECTORIES = 24
"""on one page, where nothing else is asked for"""
MOST_CHARACTERS = 8000
"""of one text; a page is for reading"""
TOLD = (
    "saw",
    "wrote",
    "action",
    "valid",
    "effective",
    "label",
    "reward",
    "credit",
    "logprob",
    "tokens",
    "prompt_tokens",
    "prompt",
)
"""fields of a turn with a place of their own; whatever else is recorded is listed by name"""

Chosen = tuple[str, Record, Known]
"""where an episode is from, the episode, and what is known of its run"""


def choose(found: Sequence[Episodes], most: int) -> list[tuple[str, Record]]:
    """(where it is from, episode): a success, a failure and the longest of every family in every file, then others in turn."""
    wanted: list[tuple[str, Record]] = []
    taken: set[int] = set()
    for candidates in _preferences(found):
        for title, record in candidates:
            if len(wanted) < most and id(record) not in taken:
                taken.add(id(record))
                wanted.append((title, record))
    return wanted


def viewer(found: Sequence[Episodes], known: Known, most: int) -> Markup:
    """The part of the page in which trajectories are read step by step."""
    total = sum(len(episodes.records) for episodes in found)
    if not total:
        return tag("p", "No trajectories were recorded (`--no-trajectories`), or none can be read.", cls="quiet")
    chosen = choose(found, most)
    if not chosen:
        return tag("p", f"No trajectories were asked for; {count(total)} can be read.", cls="quiet")
    sources = " and ".join(f"{count(len(e.records))} of {e.title}" for e in found)
    families = {str(record.get("family", "")) for e in found for record in e.records}
    shown = {str(record.get("family", "")) for _, record in chosen}
    left = f" Families with none here: {', '.join(sorted(map(str, families - shown)))}." if families - shown else ""
    lead: list[Child] = [f"{len(chosen)} episodes, chosen from {sources}"]
    if total > len(chosen):
        flag = tag("code", "--trajectories N", cls="whole")
        lead.append([f": the other {count(total - len(chosen))} are not on this page; ", flag, " embeds more"])
    lead.append(f".{left}")
    return reader([(title, record, known) for title, record in chosen], lead)


def reader(chosen: Sequence[Chosen], lead: Child) -> Markup:
    """These episodes, to be read step by step."""
    return join(
        [
            tag("p", lead, " Left and right arrow keys step; page up and page down change the episode.", cls="quiet"),
            tag("noscript", tag("p", "Reading step by step needs JavaScript; everything above does not.")),
            tag("div", id="viewer", hidden=True),
            data_block("episodes", embedded(chosen)),
        ]
    )


def embedded(chosen: Sequence[Chosen]) -> dict[str, Any]:
    """What the script reads. Texts are kept once and named by number: a task's statement stands in every prompt."""
    texts: dict[str, int] = {}

    def kept(text: Any) -> int:
        text = _clipped(str(text))
        return texts.setdefault(text, len(texts))

    episodes = []
    for title, record, known in chosen:
        prompts = prompts_of(record, known)
        turns = [_turn(turn, prompts.turns[i] if prompts.turns else [], kept) for i, turn in enumerate(record["turns"])]
        head = {
            name: record.get(name) for name in ("task", "family", "goal", "success", "score", "stop", "detail", "condition")
        }
        final = kept(record.get("saw", ""))
        episodes.append({"from": title, **head, "prompts": prompts.source, "turns": turns, "final": final})
    return {"texts": list(texts), "episodes": episodes}


def _turn(turn: Record, prompt: Sections, kept: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "saw": kept(turn["saw"]),
        "wrote": kept(turn["wrote"]),
        "action": kept(turn["action"]),
        "valid": turn["valid"],
        "effective": turn.get("effective", True) is True,
    }
    if prompt:
        told["prompt"] = [[name, kept(text)] for name, text in prompt]
    told |= {
        name: turn[name] for name in ("reward", "credit", "logprob", "tokens", "prompt_tokens") if is_number(turn.get(name))
    }
    marks = {k: v if is_number(v) else _clipped(str(v)) for k, v in turn.items() if k not in TOLD}
    if turn.get("label"):
        marks = {"label": str(turn["label"]), **marks}
    return told | ({"marks": marks} if marks else {})


def _preferences(found: Sequence[Episodes]) -> Iterator[list[tuple[str, Record]]]:
    """Lists to take from, most wanted first."""
    by_family: list[tuple[str, list[Record]]] = []
    for episodes in found:
        families: dict[str, list[Record]] = {}
        for record in episodes.records:
            families.setdefault(str(record.get("family", "")), []).append(record)
        by_family += [(episodes.title, families[name]) for name in sorted(families)]
    for success in (True, False):
        yield [(title, next(r for r in rs if r["success"] is success)) for title, rs in by_family if _any(rs, success)]
    yield [(title, max(rs, key=lambda r: len(r["turns"]))) for title, rs in by_family]
    columns = zip_longest(*([(title, r) for r in rs] for title, rs in by_family))
    yield [entry for column in columns for entry in column if entry is not None]


def _any(records: Sequence[Mapping[str, Any]], success: bool) -> bool:
    return any(r["success"] is success for r in records)


def _clipped(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}\n… {len(text) - MOST_CHARACTERS:,} more characters are not on this page"
