"""The page of one run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from tacit.core.progress import number_of
from tacit.core.types import PLAIN, Step, Trajectory
from tacit.evaluation.behaviour import Behaviour, behaviour, describe_ending
from tacit.evaluation.plots import COLOURS, Point, Series
from tacit.report.charts import draw
from tacit.report.method_sections import experience_charts, phrases_of, run_charts, skill_charts, standing_out
from tacit.report.page import NOTHING, Live, count, counted, duration, interval, is_number, percent, plain, render, short
from tacit.report.run_files import (
    EVALUATIONS,
    Episodes,
    Known,
    Record,
    RunFiles,
    known_of,
    newest_episodes,
    read_run,
    table_of,
    trajectory_of,
)
from tacit.report.viewer import MOST_TRAJECTORIES, viewer
from tacit.runs.directory import SUMMARY

# How the policy behaved: lengths, wasted steps, why it failed, and how much it had to read as episodes went on.

Shown = Callable[[Any], str]
STATISTICS: tuple[tuple[str, str, Shown], ...] = (
    ("episodes", "episodes", count),
    ("successes", "successes", count),
    ("steps of a success", "success_length", plain),
    ("steps of a failure", "failure_length", plain),
    ("in successes: steps invalid or refused", "invalid", percent),
    ("in successes: steps repeating an action", "repeats", percent),
    ("in successes: places visited again", "revisits", plain),
    ("different operators in a success", "operators_per_success", plain),
    ("of all steps: repeats an action", "all_repeats", percent),
)
"""(what it is called, the field of Behaviour, how it is shown)"""
OF_ALL_STEPS: dict[str, Callable[[Step], bool]] = {
    "of all steps: completion does not parse": lambda step: not step.valid,
    "of all steps: action refused by the world": lambda step: step.valid and not step.effective,
}
BY_NAME: tuple[tuple[str, str, str, Shown], ...] = (
    ("why episodes failed", "share of the failures", "failures", percent),
    ("skills per success", "", "per_success", lambda value: plain(value, 2)),
    ("successes without", "", "without", percent),
    ("operators", "share of the operations of successes", "operators", percent),
    ("last skill", "successes that end with it", "closings", count),
)
"""tables with a row for each name: (title, caption, field, how it is shown)"""


def conduct(found: Sequence[Episodes], known: Known, notices: list[str]) -> dict[str, Any]:
    """A column per file of episodes: what the page shows of them."""
    tasks = {name: scene.task for name, scene in known.scenes.items()}
    played = [[trajectory_of(record, tasks.get(record["task"])) for record in episodes.records] for episodes in found]
    told = [_behaviour(trajectories, known, notices) for trajectories in played]
    rows = []
    for name, field, show in STATISTICS:
        values = [getattr(b, field) for b in told]
        rows += [[name, *map(show, values)]] if any(value is not None for value in values) else []
    for name, flag in OF_ALL_STEPS.items():
        flags = [[flag(step) for t in trajectories for step in t.steps] for trajectories in played]
        rows.append([name, *(percent(sum(own) / len(own) if own else None) for own in flags)])
    tables = []
    for title, caption, field, show in BY_NAME:
        columns: list[Mapping[str, Any]] = [getattr(b, field) for b in told]
        names = sorted({name for column in columns for name in column})
        body = [[describe_ending(n), *(show(c.get(n, 0)) if c else NOTHING for c in columns)] for n in names]
        tables.append((title, caption, body))
    return {"titles": [episodes.title for episodes in found], "rows": rows, "failures": tables[0], "skills": tables[1:]}


def by_world(found: Sequence[Episodes], known: Known) -> list[Episodes]:
    """Episodes of several worlds in one file are several files."""
    parted: list[Episodes] = []
    for episodes in found:
        worlds: dict[str, list[Record]] = {}
        for record in episodes.records:
            scene = known.scenes.get(record["task"])
            worlds.setdefault(scene.world.name if scene else "elsewhere", []).append(record)
        named = [replace(episodes, records=own, name=f"{episodes.title}, {world}") for world, own in worlds.items()]
        parted += named if len(named) > 1 else [episodes]
    return parted


def reading_load(found: Sequence[Episodes]) -> list[Markup]:
    """Prompt tokens by turn, a chart for each file of episodes."""
    charts = []
    for episodes in found:
        series = prompt_series(episodes)
        if len(series.points) > 1:
            begun, last = sum(bool(r["turns"]) for r in episodes.records), series.points[-1].x
            left = sum(len(r["turns"]) >= last for r in episodes.records)
            came = f"of {number_of(begun, 'episode')} {left} came to turn {short(last)}"
            said = f"{episodes.title}: {came}; line: mean; band: middle 80%"
            charts.append(draw("Prompt tokens by turn", [series], "turn", note=said, floor=0.0))
    return charts


def prompt_series(episodes: Episodes) -> Series:
    """Mean and the middle 80% of the episodes that came that far."""
    columns = zip_longest(*([turn.get("prompt_tokens") for turn in record["turns"]] for record in episodes.records))
    read = [[tokens for tokens in column if is_number(tokens)] for column in columns]
    middle = [(turn, np.mean(own), *np.percentile(own, (10, 90))) for turn, own in enumerate(read, start=1) if own]
    return Series(episodes.title, [Point(turn, *map(float, values)) for turn, *values in middle])


def _behaviour(played: Sequence[Trajectory], known: Known, notices: list[str]) -> Behaviour:
    """With the world's own labels and skills, where the world is here and knows these tasks."""
    scenes = [scene for t in played if (scene := known.scenes.get(t.task.id))]
    if scenes and len(scenes) == len(played):
        try:
            world = scenes[0].world
            return behaviour(played, world.alphabet, world.failure, world.place)
        except Exception as error:  # a world of the user's own, over episodes that another version of it may have recorded
            why = f"{type(error).__name__}: {error}"
            notices.append(f"The world could not label these episodes ({why}); their endings are shown.")
    elif known.scenes and played:
        why = "its version has changed, so failures are not labelled"
        notices.append(f"Some recorded tasks are not this world's any more: {why}.")
    return behaviour(played)


# Evaluations, panel by panel. Final and peak are separate numbers: the peak was chosen for being high.


@dataclass(frozen=True)
class Panel:
    """What was scored on the same tasks under the same conditions, in the order it was measured."""

    scores: Sequence[Record]
    training: Sequence[Record]
    """those made again and again while the run trained; others are of a stage's end, or of `tacit eval` later"""
    final: Record | None
    """the last of these in a finished run"""
    peak: Record | None
    """the best of practice, or of anything where there was no practice"""

    @property
    def name(self) -> str:
        """The world where evaluations say it, else the panel's own name."""
        if self.worlds:
            return "mean of the worlds"
        return str(self.scores[-1].get("world") or self.scores[-1].get("panel", "?"))

    @property
    def worlds(self) -> list[str]:
        """those that this is the mean of, each of which has a panel of its own; none where it is one's own"""
        return list(dict.fromkeys(world for e in self.scores for world in table_of(e.get("worlds"))))

    @property
    def tries(self) -> list[tuple[str, str, str]]:
        """pass@k and SC@k, where tasks were played several times: (title, kind, k)."""
        kinds = (("pass@", "pass"), ("SC@", "majority"))
        found = {(title, kind, k) for e in self.scores for title, kind in kinds for k in table_of(e.get(f"{kind}_at"))}
        return [(f"{title}{k}", kind, k) for title, kind, k in sorted(found, key=lambda f: (f[1] != "pass", len(f[2]), f[2]))]

    def marks(self, score: Record) -> list[str]:
        return [name for name, which in (("final", self.final), ("peak", self.peak)) if which is score]


def panels_of(run: RunFiles) -> list[Panel]:
    """The run's own panel first: one, or the mean over its worlds and one for each of them."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for e in [*run.evaluations, *run.further, *run.later]:
        groups.setdefault((str(e.get("world", "")), conditions_of(e)), []).append(e)
    panels = []
    for scores in groups.values():
        training = [e for e in scores if any(e is own for own in run.evaluations)]
        practised = [e for e in training if e.get("stage") == "rl"] or training
        peak = max(practised, key=lambda e: e["success"], default=None)
        panels.append(Panel(scores, training, training[-1] if run.finished and training else None, peak))
    return panels


def moment(score: Record) -> str:
    """When it was measured; of a later evaluation, what."""
    if "stage" not in score:
        return f"{score.get('checkpoint') or score.get('target') or '?'}, measured later"
    return "untrained" if score["stage"] == "untrained" else f"after {score['stage']} {score.get('step', 0)}"


def conditions_of(score: Record) -> str:
    """What was measured on, and how."""
    if worlds := table_of(score.get("worlds")):
        return f"Mean of {len(worlds)} worlds, each of which counts the same"
    sampling = [
        (name.replace("_", " "), v) for name, v in table_of(score.get("sampling")).items() if isinstance(v, int | float)
    ]
    told = [
        f"Panel {score.get('panel', '?')}",
        f"hash {score.get('panel_hash', '?')}",
        *(f"{name} {v}" for name, v in sampling),
    ]
    return ", ".join([*told, *condition_of(score)])


def condition_of(score: Record) -> list[str]:
    """In words, where it is another than none."""
    condition = str(table_of(score.get("condition")).get("name", PLAIN.name))
    return [f"under condition {condition}"] if condition != PLAIN.name else []


def headline(panels: Sequence[Panel]) -> list[tuple[str, str, str]]:
    """(label, number, what goes with it) for the top of the page. Where there is a mean over worlds its peak is the run's: the
    worlds have theirs at other moments, and each at the cost of the others."""
    own, told = [panel for panel in panels if panel.training], []
    for panel in own:
        last = ("final success", panel.final) if panel.final else ("latest success, not final", panel.training[-1])
        apart = panel.worlds or not any(other.worlds for other in own)
        for label, e in (last, ("peak success", panel.peak if apart else None)):
            name = f"{label}, {panel.name}" if len(own) > 1 else label
            told += [(name, percent(e["success"]), f"{interval(e['interval'])} {moment(e)}")] if e else []
    return told


# What was run: the settings that are somebody's choice first, then all of them, versions, and the command to repeat it.

Place = tuple[str, ...]
Flat = dict[Place, Any]
UNPREFIXED = ("method", "prompt", "schedule")
"""sections whose flags stand without their name: `--kl`, `--groups`"""
NAMED = {("world",): "--world", ("method", "name"): "--method", ("model",): "--model", ("seed",): "--seed"}
"""what every command names"""
CODE = Markup("<code>{}</code>")


def provenance(run: RunFiles, defaults: Record | None) -> dict[str, Any]:
    """`defaults` are the settings of the same method, world and model where nothing else is said; None where not known."""
    told, usual = flat(run.settings), flat(defaults or {})
    chosen = {place: value for place, value in differing(told, usual).items() if place not in NAMED}
    facts = [(key, name_of(run.settings, key)) for key in ("world", "method", "model", "seed")] + made_by(run.versions)
    digest = run.summary.get("digest")
    return {
        "facts": [*facts, ("directory", CODE.format(run.path)), *([("weights", CODE.format(digest))] if digest else [])],
        "defaults_known": defaults is not None,
        "chosen": [(CODE.format(flag(place)), shown(value), shown(usual.get(place))) for place, value in chosen.items()],
        "command": [shlex.join(piece) for piece in command(told, usual)],
        "settings": [(CODE.format(".".join(place)), shown(value)) for place, value in told.items()],
    }


def made_by(versions: Record) -> list[tuple[str, str]]:
    """Code, machine and libraries, where they are on record."""
    git, libraries = table_of(versions.get("git")), table_of(versions.get("libraries"))
    changed = " with changes not committed" if git.get("changed") else ""
    code = f"tacit {versions.get('tacit')}" + (f", commit {str(git['commit'])[:10]}{changed}" if git.get("commit") else "")
    used = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
    machine, python = versions.get("machine"), versions.get("python")
    rows = (("code", versions and code), ("machine", machine), ("python", python), ("libraries", used))
    return [(name, word(value)) for name, value in rows if value]


def flat(settings: Record, place: Place = ()) -> Flat:
    """Leaf settings by their place."""
    found: Flat = {}
    for key, value in settings.items():
        found |= flat(value, (*place, key)) if isinstance(value, Mapping) else {(*place, key): value}
    return found


def differing(told: Flat, usual: Flat) -> Flat:
    """Where the run lies is not a setting."""
    return {p: value for p, value in told.items() if p != ("out",) and (p not in usual or usual[p] != value)}


def command(told: Flat, usual: Flat) -> list[list[str]]:
    """The words that make the same run again, a flag with its value at a time. It goes into a directory of its own name."""
    pieces = [["tacit", "train"], *([name, word(told[place])] for place, name in NAMED.items() if place in told)]
    for place, value in differing(told, usual).items():
        name = flag(place)
        if isinstance(value, bool):
            pieces.append([name if value else f"--no-{name[2:]}"])
        elif place not in NAMED:  # what begins with a dash would be taken for a flag
            pieces.append([f"{name}={word(value)}"] if word(value).startswith("-") else [name, word(value)])
    return pieces


def flag(place: Place) -> str:
    """--group-size of (schedule, group_size), --sft.steps of (sft, steps)."""
    kept = place[1:] if place[0] in UNPREFIXED and len(place) > 1 else place
    return "--" + ".".join(kept).replace("_", "-")


def word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "none" if value is None else str(value)


def shown(value: Any) -> Markup:
    return CODE.format({True: "on", False: "off"}[value] if isinstance(value, bool) else word(value) or "none")


def name_of(settings: Record, key: str) -> str:
    """The world's, the method's or the model's name, which may stand in a table of its settings."""
    value = settings.get(key, "")
    return word(value.get("name", "") if isinstance(value, Mapping) else value)


# Learning curves: the panel with its intervals first, then what practice and imitation recorded at every step.
#
# A run in several worlds records some numbers once for each of them, as `WORLD/success`: these are lines of one chart.

STAGE_TITLES = {"rl": "Practice", "sft": "Imitation"}
NOT_CURVES = ("stage", "step", "at")
MOST_ROWS = 200
"""of a table of values; more are thinned to every n-th"""
ALL, LAST = "all", len(COLOURS) - 1
"""the line of the whole run, beside those of its worlds or phases, and its colour there: grey"""
PHASE, WHOLE = "seconds_", "seconds"
"""how long the phases of an iteration took, and all of it"""
SHARE, FROM_ZERO = {"share": True}, {"floor": 0.0}
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "success": ("Success while practising", SHARE),
    "reward": ("Reward per episode", {}),
    "loss": ("Loss", {}),
    "entropy": ("Entropy, nats/token", FROM_ZERO),
    "reference_kl": ("KL to the reference, nats/token", {}),
    "old_kl": ("KL to the sampler, nats/token", {}),
    "steps": ("Turns per episode", FROM_ZERO),
    "completion_tokens": ("Tokens written per turn", FROM_ZERO),
    "prompt_tokens": ("Tokens read per turn", FROM_ZERO),
    "valid": ("Completions that parse", SHARE),
    "effective": ("Actions the world accepts", SHARE),
    "repeated": ("Actions taken before in the episode", SHARE),
    "mixed_groups": ("Groups with both outcomes", SHARE),
    "clipped": ("Tokens clipped", SHARE),
    "relabel_agreement": ("Turns in which the expert would have done the same", SHARE),
    "relabel_success": ("Success in the episodes that were relabelled", SHARE),
    "grad_norm": ("Gradient norm", FROM_ZERO),
}
"""metrics worth a chart of their own: (title, what kind of scale it has)"""


def stages_of(metrics: Sequence[Record], panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Practice first. The panel's chart stands with it, or alone where nothing was recorded of practice."""
    panel = panel_chart([panel for panel in panels if panel.training])
    names = sorted({r["stage"] for r in metrics} | ({"rl"} if panel else set()), key=lambda name: (name != "rl", name))
    return [
        _stage(name, [r for r in metrics if r["stage"] == name], [panel] if panel and name == "rl" else []) for name in names
    ]


def panel_chart(panels: Sequence[Panel]) -> Markup | None:
    """Success on each panel over practice; the last measurement before it stands at iteration 0."""
    whole, apart = [panel for panel in panels if panel.worlds], [panel for panel in panels if not panel.worlds]
    lines = [Series(panel.name, measured_points(panel), colour) for colour, panel in enumerate(apart)]
    lines += [Series(ALL, measured_points(panel), LAST) for panel in whole]
    if max((len(line.points) for line in lines), default=0) < 2:
        return None
    return draw("Success on the panel", lines, share=True, note="band: 95% interval", marks=True)


def measured_points(panel: Panel) -> list[Point]:
    before = [(0, e) for e in panel.training if e.get("stage") != "rl"][-1:]
    practised = [(e["step"], e) for e in panel.training if e.get("stage") == "rl" and is_number(e.get("step"))]
    return [Point(x, e["success"], *e["interval"]) for x, e in [*before, *practised]]


def lines_of(records: Sequence[Record]) -> dict[str, list[Series]]:
    """By metric: a line for the run, and one for each of its worlds, which are those that have a success."""
    names = dict.fromkeys(name for r in records for name in r if name not in NOT_CURVES)
    worlds = [name.removesuffix("/success") for name in names if name.endswith("/success")]
    found: dict[str, list[Series]] = {}
    for name in names:
        colour, world = next(((i, w) for i, w in enumerate(worlds) if name.startswith(f"{w}/")), (LAST if worlds else 0, ""))
        points = [Point(r["step"], r[name]) for r in records if is_number(r.get(name))]
        if points:
            metric = name.removeprefix(f"{world}/") if world else name
            found.setdefault(metric, []).append(Series(world or ALL, points, colour))
    return found


def _stage(name: str, records: Sequence[Record], charts: list[Markup]) -> dict[str, Any]:
    """The charts of one stage, and its numbers as a table."""
    word, found = "iteration" if name == "rl" else "step", lines_of(records)
    phases = [metric for metric in found if metric.startswith(PHASE)]
    timed = {metric: found.pop(metric)[0].points for metric in [*phases, WHOLE] if phases and metric in found}
    compared = run_charts(found, word)
    experience, skilled = experience_charts(found, word), skill_charts(found, word)
    still = {metric: found.pop(metric) for metric in list(found) if all(map(_flat, found[metric]))}
    for metric, (title, scale) in READINGS.items():
        if metric in found:
            charts.append(draw(title, found.pop(metric), word, **scale))
    if timed:
        lines = [Series(metric.removeprefix(PHASE), timed[metric], i) for i, metric in enumerate(phases)]
        lines += [Series(ALL, timed[WHOLE], LAST)] if WHOLE in timed else []
        charts.append(draw("Seconds of each phase", lines, word, floor=0.0))
    unmoved = [(m if s.name == ALL else f"{s.name}/{m}", s.points[0].y) for m, lines in still.items() for s in lines]
    every = -(-len(records) // MOST_ROWS)
    return {
        "title": STAGE_TITLES.get(name, name),
        "word": word,
        "charts": charts,
        "compared": compared,
        "experience": experience,
        "skilled": skilled,
        "others": [draw(metric, lines, word) for metric, lines in found.items()],
        "still": [f"{name} {short(value)}" for name, value in unmoved],
        "names": dict.fromkeys(name for r in records for name in r if name not in NOT_CURVES and is_number(r[name])),
        "rows": [r for i, r in enumerate(records) if i % every == 0 or i == len(records) - 1],
        "caption": f"Every {every}th {word} and the last; metrics.jsonl has all {len(records)}." if every > 1 else "",
    }


def _flat(line: Series) -> bool:
    return len(line.points) > 1 and all(p.y == line.points[0].y for p in line.points)


def run_page(
    path: Path, most_trajectories: int = MOST_TRAJECTORIES, live: Live | None = None, said: Sequence[str] = (), **more: Any
) -> str:
    """HTML of the run in `path`. What is broken or missing there is said on the page; the rest is shown. A page that follows
    the run is `live`, and may be told `more`; `said` is what is wrong elsewhere."""
    run = read_run(path)
    known = known_of(run.settings)
    notices = [*([] if live else unfinished(run)), *run.notices, *said, *known.notices]
    measured = by_world(newest_episodes(path, EVALUATIONS, notices), known)
    recent = [*measured, *by_world(newest_episodes(path, ("rl",), notices), known)]
    first = next((found for stage in EVALUATIONS if (found := newest_episodes(path, (stage,), notices))), [])
    before = [episodes for episodes in by_world(first, known) if episodes.title not in [e.title for e in measured]]
    panels = panels_of(run)
    parts = {
        "panels": panels,
        "alarms": [(alarm["step"], alarm["name"].replace("_", " "), _told(alarm)) for alarm in run.alarms],
        "stages": stages_of(run.metrics, panels),
        "phrases": phrases_of(path, notices),
        "standing_out": standing_out(path, notices),
        "behaved": conduct([*before, *recent], known, notices) if recent else None,
        "reading": reading_load(recent),
        "shown": viewer(recent, known, most_trajectories),
        **provenance(run, known.defaults),
    }
    method, world, model = (name_of(run.settings, key) for key in ("method", "world", "model"))
    what = f"{method} in {', '.join(world.split(','))}, model {model}, seed {run.settings.get('seed')}"
    spent, done = run.summary, (run.ending, run.finished)
    told = [
        ("practised", counted(spent.get("episodes"), "episode"), counted(spent.get("generated_tokens"), "token")),
        ("time", duration(spent.get("wall_s")), counted(spent.get("turns"), "turn")),
    ]
    top = [*headline(panels), *(told if run.finished else [])]
    functions = {"conditions_of": conditions_of, "condition_of": condition_of, "moment": moment}
    told_too = {"name": path.resolve().name, "what": what, "done": done, "headline": top, **parts, **functions, **more}
    return render("run", notices, live, **told_too)


def unfinished(run: RunFiles) -> list[str]:
    if (run.path / SUMMARY).exists():
        return []
    done = f": it has come to {run.come_to}" if run.come_to else ""
    so_far = f"Below is what it has written so far; `tacit train --resume {run.path}` continues it."
    return [f"This run has not finished{done}. {so_far}"]


def _told(alarm: Record) -> str:
    example = alarm.get("example")
    return f"{alarm['message']}. This is one: {example}" if example and isinstance(example, str) else alarm["message"]
