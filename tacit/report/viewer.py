"""The trajectory viewer: chooses the episodes that a page embeds, with their recorded prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from tacit.core.progress import pluralize
from tacit.evaluation.behavior import describe_ending
from tacit.report.method_sections import FIELDS, embed_skills
from tacit.report.page import format_count, format_short, is_number, replace_invisible
from tacit.report.run_files import Episodes, Record
from tacit.runs.trajectories import order_by_interest

MAX_TRAJECTORIES = 24  # default number of trajectories on a page
MAX_CHARACTERS = 8000  # of one text


def build_viewer(recorded: Sequence[Episodes], most: int) -> dict[str, Any]:
    """Values for the page's trajectory viewer."""
    total = sum(len(episodes.records) for episodes in recorded)
    if not total:
        return {"lead": "No trajectories were recorded (`--no-trajectories`), or none can be read."}
    chosen = choose_episodes(recorded, most)
    if not chosen:
        return {"lead": f"No trajectories were requested; {format_count(total)} are available."}
    sources = ("; " if len(recorded) > 2 else " and ").join(f"{format_count(len(e.records))} of {e.title}" for e in recorded)
    lead = Markup("{}, chosen from {}").format(pluralize(len(chosen), "episode"), sources)
    if total > len(chosen):
        more = Markup(': the other {} are not on this page; <code class="whole">--trajectories N</code> embeds more')
        lead += more.format(format_count(total - len(chosen)))
    left = {get_family(r) for e in recorded for r in e.records} - {get_family(r) for _, r in chosen}
    lead += f". Families without an episode here: {', '.join(sorted(left))}." if left else "."
    return {"lead": lead, "data": embed_episodes(chosen)}


def choose_episodes(recorded: Sequence[Episodes], most: int) -> list[tuple[str, Record]]:
    """Up to `most` pairs (source, record): for each family in each file a success, a failure and the longest, then others."""
    titles = {id(record): episodes.title for episodes in recorded for record in episodes.records}
    return [(titles[id(r)], r) for r in order_by_interest([episodes.records for episodes in recorded])[:most]]


def embed_episodes(chosen: Sequence[tuple[str, Record]]) -> dict[str, Any]:
    """The script's data for (source, record). Texts are stored once and have numbers: prompts repeat the task statement."""
    texts: dict[str, int] = {}

    def text_id(text: Any) -> int:
        return texts.setdefault(_clip(text), len(texts))

    episodes = []
    for title, record in chosen:
        recorded = bool(record["turns"]) and all(_is_prompt(turn.get("prompt")) for turn in record["turns"])
        turns: list[dict[str, Any]] = []
        for turn in record["turns"]:
            kept: dict[str, Any] = {name: _show(v) for name, v in turn.items() if name not in ("prompt", *FIELDS)}
            kept |= {name: text_id(turn[name]) for name in ("saw", "wrote", "action")} | embed_skills(turn, text_id)
            turns.append(kept)
        for turn, kept in zip(record["turns"], turns, strict=True) if recorded else ():
            kept["prompt"] = [[name, text_id(text)] for name, text in turn["prompt"]]
        head = {name: str(record.get(name, "")) for name in ("task", "goal", "score", "stop", "detail", "condition")}
        head["stop"] = describe_ending(head["stop"])
        head |= {
            "from": replace_invisible(title),
            "family": get_family(record),
            "success": record["success"],
            "prompts": "as recorded" if recorded else "The prompts were not recorded.",
        }
        episodes.append({**head, "turns": turns, "final": text_id(record["saw"])})
    return {"texts": list(texts), "episodes": episodes}


def get_family(record: Record) -> str:
    return replace_invisible(str(record.get("family", "")))


def _is_prompt(value: Any) -> bool:
    """[name, text] for each section"""
    return isinstance(value, list) and all(
        isinstance(section, list) and len(section) == 2 and all(isinstance(text, str) for text in section) for section in value
    )


def _show(value: Any) -> Any:
    """Numbers and booleans unchanged, anything else as text: `progress 0.02, error 0`."""
    if is_number(value) or isinstance(value, bool):
        return value
    if isinstance(value, dict):
        value = ", ".join(f"{name} {format_short(v) if is_number(v) else v}" for name, v in value.items())
    return _clip(value)


def _clip(text: Any) -> str:
    text = str(text)
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}\n… {len(text) - MAX_CHARACTERS:,} more characters are not on this page"
