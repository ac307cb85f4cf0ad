"""The page of one run: behavior, evaluations, provenance and learning curves."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from tacit.config.values import flatten
from tacit.core.progress import pluralize
from tacit.core.types import PLAIN, Step
from tacit.evaluation.behavior import behavior, behavior_from_labels, describe_ending
from tacit.evaluation.plots import COLORS, Point, Series
from tacit.evaluation.scores import final_and_peak
from tacit.report.page import (
    DASH,
    Live,
    count_noun,
    draw_chart,
    format_count,
    format_duration,
    format_interval,
    format_number,
    format_percent,
    format_short,
    is_number,
    render,
)
from tacit.report.run_files import (
    EVALUATIONS,
    Episodes,
    Record,
    RunFiles,
    as_mapping,
    find_defaults,
    newest_episodes,
    read_run,
    to_trajectory,
)
from tacit.report.sections import (
    EXPERIENCE_CHARTS,
    MAX_TRAJECTORIES,
    SKILL_CHARTS,
    Diagnostic,
    build_viewer,
    draw_diagnostics,
    list_phrases,
    moves,
    rank_bank_entries,
)
from tacit.runs.directory import SUMMARY, resume_command

# Behavior: episode lengths, wasted steps, reasons of failure, prompt lengths

Shown = Callable[[Any], str]
STATISTICS: tuple[tuple[str, str, Shown], ...] = (
    ("episodes", "episodes", format_count),
    ("successes", "successes", format_count),
    ("steps of a success", "success_length", format_number),
    ("steps of a failure", "failure_length", format_number),
    ("in successes: steps invalid or refused", "invalid", format_percent),
    ("in successes: steps repeating an action", "repeats", format_percent),
    ("in successes: places visited again", "revisits", format_number),
    ("different operators in a success", "operators_per_success", format_number),
    ("of all steps: repeats an action", "all_repeats", format_percent),
)  # (label, field of Behavior, format)
OF_ALL_STEPS: dict[str, Callable[[Step], bool]] = {
    "of all steps: completion not in the full format": lambda step: not step.valid,
    "of all steps: action refused by the world": lambda step: step.valid and not step.effective,
}
BY_NAME: tuple[tuple[str, str, str, Shown], ...] = (
    ("why episodes failed", "share of the failures", "failures", format_percent),
    ("skills per success", "", "per_success", lambda value: format_number(value, 2)),
    ("successes without", "", "without", format_percent),
    ("operators", "share of the operations of successes", "operators", format_percent),
    ("last skill", "successes that end with it", "closings", format_count),
)  # tables with a row per name: (title, caption, field, format)


def build_behavior(recorded: Sequence[Episodes], notices: list[str]) -> dict[str, Any]:
    """Behavior tables with a column per file of episodes, from the labels recorded with the episodes."""
    played, measured, rows, tables = [[to_trajectory(r) for r in episodes.records] for episodes in recorded], [], [], []
    for own, episodes in zip(played, recorded, strict=True):
        labelled = None
        try:
            labelled = behavior_from_labels(own, [as_mapping(record.get("labels")) for record in episodes.records])
        except (TypeError, ValueError):  # labels may hold anything
            notices.append("The recorded labels of episodes cannot be read.")
        measured.append(labelled or behavior(own))
    for name, field, show in STATISTICS:
        values = [getattr(b, field) for b in measured]
        rows += [[name, *map(show, values)]] if any(value is not None for value in values) else []
    for name, is_counted in OF_ALL_STEPS.items():
        flags = [[is_counted(step) for t in trajectories for step in t.steps] for trajectories in played]
        rows.append([name, *(format_percent(sum(own) / len(own) if own else None) for own in flags)])
    for title, caption, field, show in BY_NAME:
        columns: list[Mapping[str, Any]] = [getattr(b, field) for b in measured]
        names = sorted({name for column in columns for name in column})
        body = [[describe_ending(n), *(show(c.get(n, 0)) if c else DASH for c in columns)] for n in names]
        tables.append((title, caption, body))
    return {"titles": [episodes.title for episodes in recorded], "rows": rows, "failures": tables[0], "skills": tables[1:]}


def split_by_world(recorded: Sequence[Episodes]) -> list[Episodes]:
    """Split files that contain episodes of several worlds."""
    split: list[Episodes] = []
    for episodes in recorded:
        worlds: dict[str, list[Record]] = {}
        for record in episodes.records:
            worlds.setdefault(str(as_mapping(record.get("labels")).get("world", "elsewhere")), []).append(record)
        named = [replace(episodes, records=own, name=f"{episodes.title}, {world}") for world, own in worlds.items()]
        split += named if len(named) > 1 else [episodes]
    return split


def draw_prompt_lengths(recorded: Sequence[Episodes]) -> list[Markup]:
    """Prompt tokens by turn, one chart per file of episodes."""
    charts = []
    for episodes in recorded:
        series = prompt_series(episodes)
        if len(series.points) > 1:
            played, last = sum(bool(r["turns"]) for r in episodes.records), series.points[-1].x
            left = sum(len(r["turns"]) >= last for r in episodes.records)
            reached = f"{left} of {pluralize(played, 'episode')} reached turn {format_short(last)}"
            note = f"{episodes.title}: {reached}; line: mean; band: middle 80%"
            charts.append(draw_chart("Prompt tokens by turn", [series], "turn", note=note, floor=0.0))
    return charts


def prompt_series(episodes: Episodes) -> Series:
    """Mean and middle 80% over the episodes that reached each turn."""
    columns = zip_longest(*([turn.get("prompt_tokens") for turn in record["turns"]] for record in episodes.records))
    read = [[tokens for tokens in column if is_number(tokens)] for column in columns]
    middle = [(turn, np.mean(own), *np.percentile(own, (10, 90))) for turn, own in enumerate(read, start=1) if own]
    return Series(episodes.title, [Point(turn, *map(float, values)) for turn, *values in middle])


# Evaluations by panel. Final and peak are separate numbers: the peak is selected for being high.


@dataclass(frozen=True)
class Panel:
    """Evaluations on the same tasks under the same conditions, in order."""

    scores: Sequence[Record]
    training: Sequence[Record]  # the run's own evaluations; the others are on further panels or from `tacit eval`
    final: Record | None  # the last of `training` in a finished run
    peak: Record | None  # the best after imitation or in RL

    @property
    def name(self) -> str:
        """The world if evaluations state it, else the panel's name."""
        if self.worlds:
            return "mean of the worlds"
        return str(self.scores[-1].get("world") or self.scores[-1].get("panel", "?"))

    @property
    def worlds(self) -> list[str]:
        """the worlds that this is the mean of; empty for a single world"""
        return list(dict.fromkeys(world for e in self.scores for world in as_mapping(e.get("worlds"))))

    @property
    def tries(self) -> list[tuple[str, str, str]]:
        """pass@k and SC@k, if tasks were played several times: (title, kind, k)."""
        kinds = (("pass@", "pass"), ("SC@", "majority"))
        columns = {(title, kind, k) for e in self.scores for title, kind in kinds for k in as_mapping(e.get(f"{kind}_at"))}
        return [(f"{title}{k}", kind, k) for title, kind, k in sorted(columns, key=lambda f: (f[1] != "pass", len(f[2]), f[2]))]

    def marks(self, score: Record) -> list[str]:
        return [name for name, which in (("final", self.final), ("peak", self.peak)) if which is score]


def group_panels(run: RunFiles) -> list[Panel]:
    """The run's own panel first; in several worlds the mean, then each world."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for e in [*run.evaluations, *run.further, *run.later]:
        groups.setdefault((str(e.get("world", "")), describe_conditions(e)), []).append(e)
    panels = []
    for scores in groups.values():
        training = [e for e in scores if any(e is own for own in run.evaluations)]
        last, peak = final_and_peak(training) if training else (None, None)
        panels.append(Panel(scores, training, last if run.finished else None, peak))
    return panels


def describe_moment(score: Record) -> str:
    """When a score was measured (`after rl 20`); for `tacit eval`, the checkpoint or target."""
    if "stage" not in score:
        return f"{score.get('checkpoint') or score.get('target') or '?'}, measured later"
    return "untrained" if score["stage"] == "untrained" else f"after {score['stage']} {score.get('step', 0)}"


def describe_conditions(score: Record) -> str:
    """Panel, sampling and condition."""
    if worlds := as_mapping(score.get("worlds")):
        return f"Mean of {len(worlds)} worlds, equally weighted"
    sampling = [
        (name.replace("_", " "), v) for name, v in as_mapping(score.get("sampling")).items() if isinstance(v, int | float)
    ]
    panel = [f"Panel {score.get('panel', '?')}", f"hash {score.get('panel_hash', '?')}"]
    return ", ".join([*panel, *(f"{name} {v}" for name, v in sampling), *describe_condition(score)])


def describe_condition(score: Record) -> list[str]:
    """One phrase, or none for the plain condition."""
    condition = str(as_mapping(score.get("condition")).get("name", PLAIN.name))
    return [f"under condition {condition}"] if condition != PLAIN.name else []


def build_headline(panels: Sequence[Panel]) -> list[tuple[str, str, str]]:
    """(label, number, details) for the top of the page. In several worlds only the mean has a peak: the worlds peak at
    different iterations."""
    own, headline = [panel for panel in panels if panel.training], []
    for panel in own:
        last = ("final success", panel.final) if panel.final else ("latest success, not final", panel.training[-1])
        shows_peak = panel.worlds or not any(other.worlds for other in own)
        for label, e in (last, ("peak success", panel.peak if shows_peak else None)):
            if e:
                name = f"{label}, {panel.name}" if len(own) > 1 else label
                headline.append((name, format_percent(e["success"]), f"{format_interval(e['interval'])} {describe_moment(e)}"))
    return headline


def describe_outcome(panels: Sequence[Panel]) -> str:
    """A sentence on success at the first evaluation, after imitation and at the end, and on whether RL changed it (whether the
    95% intervals overlap). "" without evaluations."""
    own = sorted((panel for panel in panels if panel.training), key=lambda panel: not panel.worlds)
    if not own:
        return ""
    before = [e for e in own[0].training if e.get("stage") != "rl"]
    scores = [*before[:1], *before[1:][-1:], *own[0].training[len(before) :][-1:]]
    moments = [f"{format_percent(e['success'])} {describe_moment(e)}" for e in scores]
    text = f"Success on {own[0].name}: {', '.join(moments)}."
    if not before or scores[-1].get("stage") != "rl":
        return text
    (low, high), (start, end) = scores[-1]["interval"], before[-1]["interval"]
    change = "raised it" if low > end else "lowered it" if high < start else "made no difference beyond the 95% intervals"
    return f"{text} RL training {change}."


# Provenance: chosen settings, all settings, versions, and the command to repeat the run

Key = tuple[str, ...]
Flat = dict[Key, Any]
UNPREFIXED = ("method", "prompt", "schedule")  # sections whose flags have no prefix: `--kl`, `--groups`
ALWAYS_SHOWN = {("world",): "--world", ("method", "name"): "--method", ("model",): "--model", ("seed",): "--seed"}
"""flags of every command"""
CODE = Markup("<code>{}</code>")


def build_provenance(run: RunFiles, defaults: Record | None) -> dict[str, Any]:
    """Values for the provenance section. `defaults`: default settings for the same method, world and model; None if unknown."""
    settings, usual = flatten(run.settings), flatten(defaults or {})
    chosen = {place: value for place, value in find_differences(settings, usual).items() if place not in ALWAYS_SHOWN}
    facts = [(key, setting_name(run.settings, key)) for key in ("world", "method", "model", "seed")]
    facts += [*describe_versions(run.versions), ("directory", CODE.format(run.path))]
    facts += [("weights", CODE.format(digest))] if (digest := run.summary.get("digest")) else []
    return {
        "facts": facts,
        "defaults_known": defaults is not None,
        "chosen": [
            (CODE.format(flag_name(place)), render_value(value), render_value(usual.get(place)))
            for place, value in chosen.items()
        ],
        "command": [shlex.join(piece) for piece in build_command(settings, usual)],
        "settings": [(CODE.format(".".join(place)), render_value(value)) for place, value in settings.items()],
    }


def describe_versions(versions: Record) -> list[tuple[str, str]]:
    """Code, machine and libraries, if they were recorded."""
    git, libraries = as_mapping(versions.get("git")), as_mapping(versions.get("libraries"))
    changed = " with uncommitted changes" if git.get("changed") else ""
    code = f"tacit {versions.get('tacit')}" + (f", commit {str(git['commit'])[:10]}{changed}" if git.get("commit") else "")
    used = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
    machine, python = versions.get("machine"), versions.get("python")
    rows = (("code", versions and code), ("machine", machine), ("python", python), ("libraries", used))
    return [(name, format_value(value)) for name, value in rows if value]


def find_differences(settings: Flat, usual: Flat) -> Flat:
    """Settings that are missing from `usual` or differ from it; the output directory is ignored."""
    return {p: value for p, value in settings.items() if p != ("out",) and (p not in usual or usual[p] != value)}


def compare_settings(runs: Sequence[Flat], ignored: Collection[Key] = (("out",),)) -> list[list[str]]:
    """A row per setting that is not the same in all runs: its flag and its values, empty for a run without it. A run without
    any settings is not compared."""
    known = list(filter(None, runs))
    places = dict.fromkeys(place for own in known for place in own if place not in ignored)
    differing = [place for place in places if any(place not in own or own[place] != known[0].get(place) for own in known)]
    return [
        [CODE.format(flag_name(place)), *(render_value(own[place]) if place in own else "" for own in runs)]
        for place in differing
    ]


def build_command(settings: Flat, usual: Flat) -> list[list[str]]:
    """The command that repeats the run, one flag with its value per item."""
    always = ([name, format_value(settings[place])] for place, name in ALWAYS_SHOWN.items() if place in settings)
    pieces = [["tacit", "train"], *always]
    for place, value in find_differences(settings, usual).items():
        name = flag_name(place)
        if isinstance(value, bool):
            pieces.append([name if value else f"--no-{name[2:]}"])
        elif place not in ALWAYS_SHOWN:  # a value that starts with a dash would be read as a flag
            pieces.append(
                [f"{name}={format_value(value)}"] if format_value(value).startswith("-") else [name, format_value(value)]
            )
    return pieces


def flag_name(place: Key) -> str:
    """--group-size for (schedule, group_size), --sft.steps for (sft, steps)."""
    kept = place[1:] if place[0] in UNPREFIXED and len(place) > 1 else place
    return "--" + ".".join(kept).replace("_", "-")


def format_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "none" if value is None else str(value)


def render_value(value: Any) -> Markup:
    return CODE.format({True: "on", False: "off"}[value] if isinstance(value, bool) else format_value(value) or "none")


def setting_name(settings: Record, key: str) -> str:
    """The name of the world, method or model; its value may be a table with a `name`."""
    value = settings.get(key, "")
    return format_value(value.get("name", "") if isinstance(value, Mapping) else value)


# Learning curves: the panel with intervals, then the metrics of RL and imitation. A run in several worlds records some metrics
# per world, such as `WORLD/success`; the worlds are then lines of one chart.

STAGE_TITLES = {"rl": "RL training", "sft": "Imitation"}
NOT_CURVES = ("stage", "step", "at")
MAX_ROWS = 200  # of a table of values; longer ones show every n-th row
ALL, LAST = "all", len(COLORS) - 1  # name and color (gray) of the whole run's line, next to those of its worlds or phases
PHASE, WHOLE = "seconds_", "seconds"  # time of the phases of an iteration, and of all of it
SHARE, FROM_ZERO = {"share": True}, {"floor": 0.0}
CHARTED = (
    Diagnostic("Success in training", {"": "success"}, SHARE),
    Diagnostic("Reward per episode", {"": "reward"}, {}),
    Diagnostic("Loss", {"": "loss"}, {}),
    Diagnostic("Entropy, nats/token", {"": "entropy"}, FROM_ZERO),
    Diagnostic("KL to the reference, nats/token", {"": "reference_kl"}, {}),
    Diagnostic("KL to the sampler, nats/token", {"": "old_kl"}, {}),
    Diagnostic("Turns per episode", {"": "steps"}, FROM_ZERO),
    Diagnostic("Completion tokens per turn", {"": "completion_tokens"}, FROM_ZERO),
    Diagnostic("Prompt tokens per turn", {"": "prompt_tokens"}, FROM_ZERO),
    Diagnostic("Completions in the full format", {"": "valid"}, SHARE),
    Diagnostic("Actions the world accepts", {"": "effective"}, SHARE),
    Diagnostic("Actions taken before in the episode", {"": "repeated"}, SHARE),
    Diagnostic("Groups with both outcomes", {"": "mixed_groups"}, SHARE),
    Diagnostic("Tokens clipped", {"": "clipped"}, SHARE),
    Diagnostic("Gradient norm", {"": "grad_norm"}, FROM_ZERO),
)  # metrics with their own chart


def build_stages(metrics: Sequence[Record], panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """RL first, with success on each panel over its iterations; the last evaluation before RL is at iteration 0."""
    own = [panel for panel in panels if panel.training]
    lines = [Series(panel.name, panel_points(panel), i) for i, panel in enumerate(p for p in own if not p.worlds)]
    lines += [Series(ALL, panel_points(panel), LAST) for panel in own if panel.worlds]
    drawn: list[Markup] = []
    if max((len(line.points) for line in lines), default=0) > 1:
        drawn.append(draw_chart("Success on the panel", lines, share=True, note="band: 95% interval", marks=True))
    names = sorted({r["stage"] for r in metrics} | ({"rl"} if drawn else set()), key=lambda name: (name != "rl", name))
    return [_stage(name, [r for r in metrics if r["stage"] == name], drawn if name == "rl" else []) for name in names]


def panel_points(panel: Panel) -> list[Point]:
    before = [(0, e) for e in panel.training if e.get("stage") != "rl"][-1:]
    trained = [(e["step"], e) for e in panel.training if e.get("stage") == "rl" and is_number(e.get("step"))]
    return [Point(x, e["success"], *e["interval"]) for x, e in [*before, *trained]]


def group_metrics(records: Sequence[Record]) -> dict[str, list[Series]]:
    """Metric -> a line for the run and one per world (the names that have a success)."""
    names = dict.fromkeys(name for r in records for name in r if name not in NOT_CURVES)
    worlds = [name.removesuffix("/success") for name in names if name.endswith("/success")]
    by_metric: dict[str, list[Series]] = {}
    for name in names:
        color, world = next(((i, w) for i, w in enumerate(worlds) if name.startswith(f"{w}/")), (LAST if worlds else 0, ""))
        points = [Point(r["step"], r[name]) for r in records if is_number(r.get(name))]
        if points:
            metric = name.removeprefix(f"{world}/") if world else name
            by_metric.setdefault(metric, []).append(Series(world or ALL, points, color))
    return by_metric


def _stage(name: str, records: Sequence[Record], charts: list[Markup]) -> dict[str, Any]:
    word, metrics = "iteration" if name == "rl" else "step", group_metrics(records)
    phases = [metric for metric in metrics if metric.startswith(PHASE)]
    timed = {metric: metrics.pop(metric)[0].points for metric in [*phases, WHOLE] if phases and metric in metrics}
    compared = draw_diagnostics(metrics, word)
    experience = draw_diagnostics(metrics, word, EXPERIENCE_CHARTS)
    skills = [metric for metric in metrics if metric.startswith("skill_shift/")]
    skilled = draw_diagnostics(metrics, word, SKILL_CHARTS) if skills else []
    still = {metric: metrics.pop(metric) for metric in list(metrics) if not any(map(moves, metrics[metric]))}
    charts += draw_diagnostics(metrics, word, CHARTED)
    if timed:
        lines = [Series(metric.removeprefix(PHASE), timed[metric], i) for i, metric in enumerate(phases)]
        lines += [Series(ALL, timed[WHOLE], LAST)] if WHOLE in timed else []
        charts.append(draw_chart("Seconds of each phase", lines, word, floor=0.0))
    unmoved = [(m if s.name == ALL else f"{s.name}/{m}", s.points[0].y) for m, lines in still.items() for s in lines]
    every = -(-len(records) // MAX_ROWS)
    return {
        "title": STAGE_TITLES.get(name, name),
        "word": word,
        "charts": charts,
        "compared": compared,
        "experience": experience,
        "skilled": skilled,
        "others": [draw_chart(metric, lines, word) for metric, lines in metrics.items()],
        "still": [f"{name} {format_short(value)}" for name, value in unmoved],
        "names": dict.fromkeys(name for r in records for name in r if name not in NOT_CURVES and is_number(r[name])),
        "rows": [r for i, r in enumerate(records) if i % every == 0 or i == len(records) - 1],
        "caption": f"Every {every}th {word} and the last; metrics.jsonl has all {len(records)}." if every > 1 else "",
    }


def render_run(
    path: Path,
    most_trajectories: int = MAX_TRAJECTORIES,
    live: Live | None = None,
    extra_notices: Sequence[str] = (),
    **more: Any,
) -> str:
    """HTML of the run in `path`. Broken and missing files become notices, followed by `extra_notices`. `more`: further values
    for the template of a live page."""
    run = read_run(path)
    defaults, unknown = find_defaults(run.settings)
    notices = [*run.notices, *extra_notices]
    if not live and not (path / SUMMARY).exists():
        reached = f"; it has reached {run.last_step}" if run.last_step else ""
        notices.insert(0, f"This run has not finished{reached}. `{resume_command(path)}` continues it.")
    measured = split_by_world(newest_episodes(path, EVALUATIONS, notices))
    recent = [*measured, *split_by_world(newest_episodes(path, ("rl",), notices))]
    first = next((newest for stage in EVALUATIONS if (newest := newest_episodes(path, (stage,), notices))), [])
    before = [episodes for episodes in split_by_world(first) if episodes.title not in [e.title for e in measured]]
    panels, alarms = group_panels(run), []
    for alarm in run.alarms:
        example = f". Example: {alarm['example']}" if isinstance(alarm.get("example"), str) and alarm["example"] else ""
        alarms.append((alarm["step"], alarm["name"].replace("_", " "), f"{alarm['message']}{example}"))
    parts = {
        "outcome": describe_outcome(panels),
        "panels": panels,
        "alarms": alarms,
        "stages": build_stages(run.metrics, panels),
        "phrases": list_phrases(path, notices),
        "standing_out": rank_bank_entries(path, notices),
        "behaved": build_behavior([*before, *recent], notices) if recent else None,
        "reading": draw_prompt_lengths(recent),
        "shown": build_viewer(recent, most_trajectories),
        **build_provenance(run, defaults),
    }
    method, world, model = (setting_name(run.settings, key) for key in ("method", "world", "model"))
    what = f"{method} in {', '.join(world.split(','))}, model {model}, seed {run.settings.get('seed')}"
    spent, top = run.summary, build_headline(panels)
    if run.finished:
        generated = count_noun(spent.get("generated_tokens"), "token")
        top.append(("RL training", count_noun(spent.get("episodes"), "episode"), generated))
        top.append(("time", format_duration(spent.get("wall_s")), count_noun(spent.get("turns"), "turn")))
    functions = {f.__name__: f for f in (describe_conditions, describe_condition, describe_moment)}
    head = {"name": path.resolve().name, "what": what, "done": (run.ending, run.finished), "headline": top}
    return render("run", [*notices, *unknown], live, **head, **parts, **functions, **more)
