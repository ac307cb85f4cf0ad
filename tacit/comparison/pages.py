"""The table of a comparison as Markdown and CSV, and its plots. The same runs give the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.comparison.plan import Difference
from tacit.core.progress import pluralize
from tacit.evaluation.plots import PLAIN, Arrivals, draw_arrivals, draw_lines, label_line_ends, mean_series

Record = dict[str, Any]  # a part of comparison.json
NONE = "–"


def markdown(record: Record) -> str:
    lines = [f"# {record['name']}", ""]
    lines += [record["description"].strip(), ""] if record["description"] else []
    for world in record["worlds"]:
        panel = record["panels"].get(world)
        text = "Nothing has been measured here yet."
        if panel is not None:
            text = f"Panel `{panel['name']}` (hash `{panel['hash']}`), {panel['episodes']} episodes at every evaluation."
        lines += [f"## {world}", "", text, "", *_grid(*table_text(record, world)), ""]
        if missing := missing_runs(record, world):
            lines += [*(f"- {line}" for line in missing), ""]
        if differences := record["differences"][world]:
            lists = [f"- {Difference(**difference)}" for difference in differences]
            lines += ["Settings that several methods have, with different values:", "", *lists, ""]
    lines += [f"Note: {note}\n" for note in record["notes"]]
    count, baseline = outcome_count(record), record["baseline"]
    compared, test = "final success", "exact McNemar test over seeds × tasks"
    if count > 1:
        compared, test = f"the mean of the last {count} evaluations", "sign-flip test over tasks"
    lines += [
        f"Success in %, mean over seeds with its 95% interval. *start*: before RL; *final*: after the last iteration; "
        f"*final, SPLIT*: the same on a further panel; *peak*: each seed's best evaluation in RL, chosen after the fact and so "
        f"biased upward. *≥ x%*: median iteration of the first evaluation at or above x%, and the share of seeds that reached "
        f"it. *Δ*: {compared}, minus that of {baseline}, paired by seed. *p*: {test} against {baseline}, for these trained "
        f"agents; *p seeds*: sign-flip test over seeds, for new training runs; both with Holm's correction for all comparisons "
        f"here.",
        "",
    ]
    return "\n".join(lines)


def outcome_count(record: Record) -> int:
    """`mean:3` -> 3: number of last evaluations whose mean is a run's outcome."""
    return int(record.get("outcome", "last").partition(":")[2] or 1)


def table_text(record: Record, world: str) -> tuple[list[str], list[list[str]]]:
    """(titles, rows) of a world's table; a dash stands for an unknown number."""
    further, count = record["further"][world], outcome_count(record)
    # `alfworld/valid_seen/140` -> valid_seen
    splits = [panel.split("/")[1] if panel.count("/") > 1 else panel for panel in further]
    head = ["method", "seeds", "start", "final", *([f"mean of last {count}"] if count > 1 else [])]
    head += [*(f"final, {split}" for split in splits), "peak", "score", "success length", "invalid"]
    head += [*(f"≥ {100 * t:g}%" for t in record["thresholds"]), "Δ", "p", "p seeds"]
    rows = []
    for row in (row for row in record["table"] if row["world"] == world):
        comparison = row["against"] or {}
        rows.append([
            row["method"],
            f"{len(row['seeds'])}/{len(record['seeds'])}",
            *(_number(row[name], 100, 1) for name in ("start", "final", *(["outcome"] if count > 1 else []))),
            *(_number(row["further"].get(panel, {}).get("final"), 100, 1) for panel in further),
            _number(row["peak"], 100, 1),
            _number(row["score"], 1, 3),
            _number(row["success_length"], 1, 1),
            _number(row["invalid"], 100, 1),
            *(_reached(entry) for entry in row["steps_to"]),
            _number(comparison.get("difference"), 100, 1, sign=True),
            p_text(comparison.get("p_holm")),
            p_text(comparison.get("p_seeds_holm")),
        ])  # fmt: skip
    return head, rows


def csv_text(record: Record) -> str:
    """One line per world and method, all digits."""
    measures = ["start", "final", "peak", "score", "success_length", "invalid", "ineffective", "area"]
    measures += ["outcome"] if outcome_count(record) > 1 else []
    head = ["world", "method", "panel", "panel_hash", "seeds", "missing"]
    head += [f"{name}{suffix}" for name in measures for suffix in ("", "_low", "_high")]
    for threshold in record["thresholds"]:
        head += [f"steps_to_{threshold:g}", f"reached_{threshold:g}"]
    tests = ("won", "lost", "p", "p_holm", "p_seeds", "p_seeds_holm")
    head += ["difference", "difference_low", "difference_high", *tests]
    further = list(dict.fromkeys(panel for own in record["further"].values() for panel in own))
    head += [f"final {panel}{suffix}" for panel in further for suffix in ("", " low", " high")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in record["table"]:
        panel, comparison = record["panels"].get(row["world"]) or {}, row["against"] or {}
        line = [row["world"], row["method"], panel.get("name"), panel.get("hash"), len(row["seeds"]), len(row["missing"])]
        for name in measures:
            line += [(row[name] or {}).get(key) for key in ("mean", "low", "high")]
        for entry in row["steps_to"]:
            line += [entry["median"], entry["reached"]]
        line += [(comparison.get("difference") or {}).get(key) for key in ("mean", "low", "high")]
        line += [comparison.get(test) for test in tests]
        for panel in further:
            line += [((row["further"].get(panel) or {}).get("final") or {}).get(key) for key in ("mean", "low", "high")]
        writer.writerow(["" if value is None else value for value in line])
    return out.getvalue()


def p_text(p: float | None) -> str:
    """
    >>> p_text(0.00004), p_text(0.0312)
    ('<0.001', '0.031')
    """
    if p is None:
        return NONE
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _number(measure: Record | None, scale: float, digits: int, sign: bool = False) -> str:
    if measure is None:
        return NONE
    plus = "+" if sign else ""
    mean = f"{scale * measure['mean']:{plus}.{digits}f}"
    if measure["low"] is None:
        return mean
    return f"{mean} [{scale * measure['low']:{plus}.{digits}f}, {scale * measure['high']:{plus}.{digits}f}]"


def _reached(entry: Record) -> str:
    if not entry["of"]:
        return NONE
    when = "never" if not entry["reached"] else "later" if entry["median"] is None else f"{entry['median']:g}"
    return f"{when} ({entry['reached']}/{entry['of']})"


def missing_runs(record: Record, world: str) -> list[str]:
    """`broken, seed 0: failed: …` for each missing run of a world."""
    start = record["starts"].get(world)
    lines = []
    if start and start["status"] != "finished":
        lines.append(f"start: {start['status']}" + (f": {start['error']}" if start["error"] else ""))
    for cell in record["cells"]:
        if cell["world"] == world and cell["status"] != "finished":
            reason = f": {cell['error']}" if cell["error"] else ""
            lines.append(f"{cell['method']}, seed {cell['seed']}: {cell['status']}{reason}")
    return lines


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    lines = [[text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in (head, *rows)]
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])]


# Plots, one PNG and SVG per world: learning curves, when each seed reached a threshold, and the file's metrics.

SPANS = 10  # points of a metric's curve


def draw(record: Record, directory: Path) -> list[Path]:
    """The plotted files. Worlds without a curve are skipped."""
    import matplotlib

    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    # SVG ids are random unless salted.
    style = PLAIN | {"svg.hashsalt": "tacit", "font.size": 9, "grid.alpha": 0.25}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        for world in record["worlds"]:
            cells = [c for c in record["cells"] if c["world"] == world and c["status"] == "finished" and len(c["curve"]) > 1]
            for kind, figure in _pictures(record, world, cells) if cells else ():
                for suffix, more in ((".png", {"dpi": 150}), (".svg", {"metadata": {"Date": None}})):
                    drawn.append(directory / f"{kind}-{world}{suffix}")
                    figure.savefig(drawn[-1], **more)
    return drawn


def _pictures(record: Record, world: str, cells: Sequence[Record]) -> Iterator[tuple[str, Any]]:
    from matplotlib.figure import Figure

    methods = [(i, method) for i, method in enumerate(record["methods"]) if any(c["method"] == method for c in cells)]
    by_spans = f"{world}: in RL, means of {SPANS} spans of iterations"

    def spans(name: str) -> Callable[[Record], dict[float, float]]:
        return lambda cell: average_spans(cell["practice"][name])

    lines = [(name.replace("/", "-"), name, by_spans, 2, spans(name)) for name in record.get("metrics", ())]
    by_seeds = f"{world}: mean of {pluralize(len({c['seed'] for c in cells}), 'seed')}; each seed thin"

    def success(cell: Record) -> dict[float, float]:
        return {p["step"]: 100 * p["success"] for p in cell["curve"]}

    for file, label, title, digits, curve in (("learning", "success on the panel, %", by_seeds, 1, success), *lines):
        by_method = [mean_series(m, [curve(c) for c in cells if c["method"] == m], i) for i, m in methods]
        series = [s for s in by_method if s.points]
        if not series:
            continue
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        draw_lines(axes, series, marks=True)
        axes.set(xlabel="iteration", ylabel=label, title=title)
        if file == "learning":
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.grid(axis="y")
        label_line_ends(axes, [replace(s, name=f"{s.name}  {s.points[-1].y:.{digits}f}") for s in series], 0.055)
        yield file, figure

    thresholds = record["thresholds"]
    if thresholds:
        figure = Figure(figsize=(2.4 + 2.3 * len(thresholds), 1.3 + 0.42 * len(methods)), layout="constrained")
        last = max(p["step"] for c in cells for p in c["curve"])
        for i, axes in enumerate(figure.subplots(1, len(thresholds), sharey=True, squeeze=False)[0]):
            steps = {m: [c["steps_to"][i]["step"] for c in cells if c["method"] == m] for _, m in methods}
            draw_arrivals(axes, [Arrivals(m, steps[m], i) for i, m in methods], last)
            axes.set(title=f"≥ {100 * thresholds[i]:g}%", xlabel="iteration")
        figure.suptitle(f"{world}: first evaluation at or above a success rate, one dot per seed", fontsize=9)
        yield "thresholds", figure


def average_spans(points: Sequence[Sequence[float]]) -> dict[float, float]:
    """Means over equal spans of iterations, at each span's last iteration."""
    last = max((step for step, _ in points), default=0)
    length = -(-last // SPANS) or 1
    spans: dict[float, list[float]] = {}
    for step, value in points:
        spans.setdefault(length * -(-step // length), []).append(value)
    return {step: sum(own) / len(own) for step, own in sorted(spans.items())}
