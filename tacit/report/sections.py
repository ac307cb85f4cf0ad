"""Sections of a run's page: clusters, skills, experience bank and dictionary of some methods, and the trajectory viewer.

Cluster diagnostics by iteration follow BiPACE's Table 1, Figure 3 and Tables L.2, L.3. A cluster holds the steps that are
compared with each other: those with the same observation (GiGPO), the same history (HGPO, at depth 1), or near hidden states
(BiGPO, BiPACE). `partition_metrics` of tacit/credit/step_relative.py counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tacit.companions.dictionary import FILE, History, SkillDictionary
from tacit.companions.experience.files import BANK_FILE, read_bank
from tacit.companions.experience.retrieval import Order, rank_entries
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.evaluation.behavior import describe_ending
from tacit.evaluation.plots import Series, mean_series
from tacit.report.page import draw_chart, format_count, format_percent, format_short, is_number, replace_invisible, thin_points
from tacit.report.run_files import Comparison, Episodes, Record, read_metrics, read_table
from tacit.runs.directory import COMPANIONS, open_checkpoints
from tacit.runs.trajectories import order_by_interest

SHARE, FROM_ZERO = {"share": True, "floor": 0.0}, {"floor": 0.0}
MAX_POINTS = 60  # per line of a comparison


@dataclass(frozen=True)
class Diagnostic:
    """One chart with a line per metric."""

    title: str
    metrics: Mapping[str, str]  # line name -> metric
    scale: Mapping[str, Any]


DIAGNOSTICS = (
    Diagnostic("Singletons", {"of clusters": "parts_singleton", "of steps": "parts_singleton_steps"}, SHARE),
    Diagnostic("Steps per cluster", {"": "parts_mean_size"}, FROM_ZERO),
    Diagnostic("Matched pairs", {"": "parts_pairs"}, FROM_ZERO),
    Diagnostic("Largest cluster of a group", {"": "parts_largest"}, SHARE),
    Diagnostic("Branch", {"PACE": "pace_used", "leave one out": "pace_leave_one_out", "zero": "pace_zero"}, SHARE),
    Diagnostic("Actions per cluster", {"": "pace_keys_per_part"}, FROM_ZERO),
    Diagnostic("Clusters of several actions", {"": "pace_parts_contrasted"}, SHARE),
    Diagnostic("Actions that could be read", {"": "pace_parsed"}, SHARE),
)


def draw_diagnostics(series: dict[str, list[Series]], word: str, wanted: Sequence[Diagnostic] = DIAGNOSTICS) -> list[Markup]:
    """Draw charts and remove their metrics from `series`. Constant metrics stay there."""
    charts = []
    for diagnostic in wanted:
        there = {name: series[metric] for name, metric in diagnostic.metrics.items() if metric in series}
        if not any(moves(line) for lines in there.values() for line in lines):
            continue
        for metric in diagnostic.metrics.values():
            series.pop(metric, None)
        if len(diagnostic.metrics) == 1:  # a line for each world
            (lines,) = there.values()
            charts.append(draw_chart(diagnostic.title, lines, word, **diagnostic.scale))
            continue
        worlds = list(dict.fromkeys(line.name for lines in there.values() for line in lines))
        for world in worlds:  # a chart for each world
            own = {name: s for name, lines in there.items() for s in lines if s.name == world}
            title = diagnostic.title if len(worlds) == 1 else f"{diagnostic.title}, {world}"
            lines = [replace(line, name=name, color=i) for i, (name, line) in enumerate(own.items())]
            charts.append(draw_chart(title, lines, word, **diagnostic.scale))
    return charts


def compare_diagnostics(comparison: Comparison, world: str, notices: list[str]) -> dict[str, Any] | None:
    """A chart per metric with a line per method (mean over seeds), and a table of means over all iterations. Unfinished runs
    are used for methods without a finished one. None if no metric was recorded."""
    recorded: dict[str, list[list[Record]]] = {}
    for method in comparison.methods:
        cells = comparison.cells_of(world, method, finished=True) or comparison.cells_of(world, method)
        places = [place for place in map(comparison.run_directory, cells) if place.is_dir()]
        recorded[method] = [[r for r in read_metrics(place, notices) if r["stage"] == "rl"] for place in places]
    charts, columns = [], {}
    for diagnostic in DIAGNOSTICS:
        for name, metric in diagnostic.metrics.items():
            title, lines = f"{diagnostic.title}, {name}" if name else diagnostic.title, []
            for method, runs in recorded.items():
                curves = [{r["step"]: r[metric] for r in run if is_number(r.get(metric))} for run in runs]
                line = mean_series(method, list(filter(None, curves)), comparison.color(method))
                lines += [replace(line, thin=())] if line.points else []
            if not lines:
                continue
            show = format_percent if diagnostic.scale is SHARE else format_short
            columns[title] = {line.name: show(sum(p.y for p in line.points) / len(line.points)) for line in lines}
            if any(map(moves, lines)):
                drawn = [replace(line, points=thin_points(line.points, MAX_POINTS)) for line in lines]
                merged = max(-(-len(line.points) // MAX_POINTS) for line in lines)
                notes = [lines[0].name] if len(lines) == 1 else []
                notes += [f"each point is the mean of {merged} neighbors"] if merged > 1 else []
                charts.append(draw_chart(title, drawn, note="; ".join(notes), **diagnostic.scale))
    if not columns:
        return None
    methods = [method for method in comparison.methods if any(method in values for values in columns.values())]
    rows = [[method, *(values.get(method, "–") for values in columns.values())] for method in methods]
    return {"charts": charts, "titles": ["method", *columns], "rows": rows}


def moves(line: Series) -> bool:
    """Whether a line is worth drawing: it has one point, or its values differ."""
    return len(line.points) == 1 or any(p.y != line.points[0].y for p in line.points)


# Hindsight skills: charts by iteration (OPID's Figures 7 and 8); per turn, the skills and each token's shift

SKILL_CHARTS = (
    Diagnostic("Skill shift per token, magnitude", {"": "skill_shift/magnitude"}, FROM_ZERO),
    Diagnostic("λ · shift per token, magnitude", {"": "skill_shift/credit_magnitude"}, FROM_ZERO),
    Diagnostic("Episode credit per token, magnitude", {"": "episode_credit_magnitude"}, FROM_ZERO),
    Diagnostic("Critical steps per episode", {"": "hindsight/critical_steps"}, FROM_ZERO),
    Diagnostic("Seconds waited for hindsight", {"": "hindsight/seconds_waited"}, FROM_ZERO),
)
FIELDS = ("skills", "shift_by_token")  # of a recorded turn


def embed_skills(turn: Record, text_id: Callable[[Any], int]) -> dict[str, Any]:
    """The skills of a turn and its tokens with their shifts, for the script; `text_id` gives a text its number."""
    skills, tokens = (turn.get(name) for name in FIELDS)
    data: dict[str, Any] = {}
    if isinstance(skills, list) and skills and all(isinstance(skill, Mapping) and skill for skill in skills):
        data["skills"] = [[str(where), text_id(text)] for skill in skills for where, text in skill.items()]
    if isinstance(tokens, list) and tokens and all(map(_is_token, tokens)):
        data["shift_by_token"] = [[text_id(word), shift] for word, shift in tokens]
    return data


# Experience bank (Complementary RL): charts by iteration, and the most useful and most harmful entries

EXPERIENCE_CHARTS = (
    Diagnostic(
        "Success with and without an entry",
        {"guided": "experience/success_guided", "free": "experience/success_free"},
        {"share": True},
    ),
    Diagnostic("Reward of the extractor's entries", {"": "experience/extractor_reward"}, {}),
    Diagnostic("Entries in the bank", {"": "experience/entries"}, FROM_ZERO),
    Diagnostic("Merges so far", {"": "experience/merges"}, FROM_ZERO),
    Diagnostic("Search of a group, ms", {"": "experience/search_ms"}, FROM_ZERO),
)
MAX_ENTRIES = 5
MAX_ENTRY_LENGTH = 400  # characters of an entry on the page


def rank_bank_entries(run: Path, notices: list[str]) -> dict[str, Sequence[tuple[Any, ...]]] | None:
    """Title -> rows (entry, wins, losses, origin, text) of the entries whose guided episodes won or lost most. If entries come
    from several worlds, the origin names the world. None without a bank."""
    if not (run / BANK_FILE).is_file():
        return None
    try:
        bank = read_bank(run / BANK_FILE)
    except TacitError as error:
        notices.append(str(error))
        return None
    with closing(bank):
        orders: dict[str, Order] = {"Most useful entries": "useful", "Most harmful entries": "harmful"}
        several = len({entry.origin.world for entry in bank.entries.values()} - {""}) > 1
        tables: dict[str, Sequence[tuple[Any, ...]]] = {}
        for title, order in orders.items():
            rows: list[tuple[Any, ...]] = []
            tables[title] = rows
            for entry, usage in rank_entries(bank, order)[:MAX_ENTRIES]:
                world, place = entry.origin.world, entry.origin.task or entry.origin.operation
                place = f"{world}: {place.removeprefix(f'{world}/')}" if several and world else place
                text = entry.text if len(entry.text) <= MAX_ENTRY_LENGTH else f"{entry.text[: MAX_ENTRY_LENGTH - 1]}…"
                rows.append((entry.id, usage.wins, usage.losses, place, text))
        return tables


# Skill dictionary (ReuseRL): the phrases in the newest checkpoint that has one

MAX_PHRASES = 20


def list_phrases(run: Path, notices: list[str]) -> dict[str, Sequence[tuple[Any, ...]]]:
    """Title -> rows (phrase, uses, since, share of E-steps), most used first; one table per world."""
    tables: dict[str, Sequence[tuple[Any, ...]]] = {}
    for checkpoint in reversed(open_checkpoints(run).all()):
        home = checkpoint.path / COMPANIONS
        for file in sorted(home.glob(f"**/{SkillDictionary.name}/{FILE}")):
            world = str(file.parent.parent.relative_to(home)).removeprefix(".")
            title, rows = f"{f'{world}: p' if world else 'P'}hrases as of {checkpoint.path.name}", []
            try:
                for p in History.load(read_table(file, notices)["history"]).current_phrases()[:MAX_PHRASES]:
                    rows.append((" › ".join(map(str, p["phrase"])), p["uses"], p["since"], format_percent(p["present"])))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                rows = []
                notices.append(f"{FILE} of the newest checkpoint cannot be read ({type(error).__name__}: {error}).")
            tables[title] = rows
        if tables:
            break
    return tables


# The trajectory viewer: chooses the episodes that a page embeds, with their recorded prompts.

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


def _is_token(value: Any) -> bool:
    """[text, shift]"""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and is_number(value[1])


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
