"""The table of a comparison for people (Markdown) and for programs (CSV). The same runs give the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from tacit.comparison.fairness import Difference

Found = dict[str, Any]
NONE = "–"


def markdown(found: Found) -> str:
    lines = [f"# {found['name']}", ""]
    lines += [found["description"].strip(), ""] if found["description"] else []
    for world in found["worlds"]:
        lines += [f"## {world}", "", _panel(found, world), ""]
        rows = [row for row in found["table"] if row["world"] == world]
        further = found["further"][world]
        head = columns(found["thresholds"], further)
        lines += [*_grid(head, [cells_of(row, len(found["seeds"]), further) for row in rows]), ""]
        for grid in found["grids"].get(world, ()):
            lines += [f"Success on `{grid['panel']}`:", "", *_grid(*grid_text(grid)), ""]
        lines += [f"- {line}" for line in missing_runs(found, world)] + ([""] if missing_runs(found, world) else [])
        lines += _differing(found["differences"][world])
    lines += [f"Note: {note}\n" for note in found["notes"]]
    lines += [
        f"Success in %, mean over seeds with its 95% interval. *start*: before practice; *final*: after the last iteration; "
        f"*final, SPLIT*: the same on a further panel; *peak*: each seed's best evaluation of practice, chosen after the fact "
        f"and so always flattering. *≥ x%*: median "
        f"iteration of the first evaluation at or above x%, with the share of seeds that got there. *Δ*: final success minus "
        f"{found['baseline']}'s. *p*: exact McNemar test against {found['baseline']} over seeds × tasks, for these very "
        f"agents; *p seeds*: sign-flip test over seeds, for training again; both corrected for all comparisons here (Holm).",
        "",
    ]
    return "\n".join(lines)


def columns(thresholds: Sequence[float], further: Sequence[str] = ()) -> list[str]:
    names = ["method", "seeds", "start", "final", *(f"final, {split_of(panel)}" for panel in further)]
    names += ["peak", "score", "success length", "invalid"]
    return [*names, *(f"≥ {100 * t:g}%" for t in thresholds), "Δ", "p", "p seeds"]


def split_of(panel: str) -> str:
    """`alfworld/valid_seen/140` is on valid_seen."""
    return panel.split("/")[1] if panel.count("/") > 1 else panel


def grid_text(grid: Found) -> tuple[list[str], list[list[str]]]:
    """Titles and rows; an empty place is a dash."""
    return ["", *grid["columns"]], [[row["name"], *(_number(m, 100, 1) for m in row["measures"])] for row in grid["rows"]]


def cells_of(row: Found, planned: int, further: Sequence[str] = ()) -> list[str]:
    """A row as text; a number that is not known is a dash."""
    against = row["against"] or {}
    return [
        row["method"],
        f"{len(row['seeds'])}/{planned}",
        *(_number(row[name], 100, 1) for name in ("start", "final")),
        *(_number(row["further"].get(panel, {}).get("final"), 100, 1) for panel in further),
        _number(row["peak"], 100, 1),
        _number(row["score"], 1, 3),
        _number(row["success_length"], 1, 1),
        _number(row["invalid"], 100, 1),
        *(_reached(entry) for entry in row["steps_to"]),
        _number(against.get("difference"), 100, 1, sign=True),
        p_text(against.get("p_holm")),
        p_text(against.get("p_seeds_holm")),
    ]


def csv_text(found: Found) -> str:
    """One line per world and method, every number in full."""
    measures = ("start", "final", "peak", "score", "success_length", "invalid", "ineffective", "area")
    head = ["world", "method", "panel", "panel_hash", "seeds", "missing"]
    head += [f"{name}{end}" for name in measures for end in ("", "_low", "_high")]
    for threshold in found["thresholds"]:
        head += [f"steps_to_{threshold:g}", f"reached_{threshold:g}"]
    tests = ("won", "lost", "p", "p_holm", "p_seeds", "p_seeds_holm")
    head += ["difference", "difference_low", "difference_high", *tests]
    further = list(dict.fromkeys(panel for own in found["further"].values() for panel in own))
    head += [f"final {panel}{end}" for panel in further for end in ("", " low", " high")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in found["table"]:
        panel, against = found["panels"].get(row["world"]) or {}, row["against"] or {}
        line = [row["world"], row["method"], panel.get("name"), panel.get("hash"), len(row["seeds"]), len(row["missing"])]
        for measure in [*(row[name] for name in measures)]:
            line += [(measure or {}).get(key) for key in ("mean", "low", "high")]
        for entry in row["steps_to"]:
            line += [entry["median"], entry["reached"]]
        line += [(against.get("difference") or {}).get(key) for key in ("mean", "low", "high")]
        line += [against.get(test) for test in tests]
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


def _number(measure: Found | None, scale: float, digits: int, sign: bool = False) -> str:
    if measure is None:
        return NONE
    plus = "+" if sign else ""
    mean = f"{scale * measure['mean']:{plus}.{digits}f}"
    if measure["low"] is None:
        return mean
    return f"{mean} [{scale * measure['low']:{plus}.{digits}f}, {scale * measure['high']:{plus}.{digits}f}]"


def _reached(entry: Found) -> str:
    if not entry["of"]:
        return NONE
    when = "never" if not entry["reached"] else "later" if entry["median"] is None else f"{entry['median']:g}"
    return f"{when} ({entry['reached']}/{entry['of']})"


def _panel(found: Found, world: str) -> str:
    panel = found["panels"].get(world)
    if panel is None:
        return "Nothing has been measured here yet."
    return f"Panel `{panel['name']}` (hash `{panel['hash']}`), {panel['episodes']} episodes at every evaluation."


def missing_runs(found: Found, world: str) -> list[str]:
    """`broken, seed 0: failed: …`, for each run of a world that the table is without."""
    start = found["starts"].get(world)
    lines = []
    if start and start["status"] != "finished":
        lines.append(f"start: {start['status']}" + (f": {start['error']}" if start["error"] else ""))
    for cell in found["cells"]:
        if cell["world"] == world and cell["status"] != "finished":
            reason = f": {cell['error']}" if cell["error"] else ""
            lines.append(f"{cell['method']}, seed {cell['seed']}: {cell['status']}{reason}")
    return lines


def _differing(differences: Sequence[Found]) -> list[str]:
    """Beside the table, what else than its headings its rows differ in."""
    if not differences:
        return []
    told = [f"- {Difference(**each)}" for each in differences]
    return ["Settings in which the methods differ, where they have the same:", "", *told, ""]


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    lines = [[text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in (head, *rows)]
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])]
