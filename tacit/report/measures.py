"""Evaluations with their intervals. Final and peak are separate numbers: the peak was chosen for being high."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.evaluation.intervals import mean_interval, wilson
from tacit.evaluation.repeats import interval_over_tasks
from tacit.report.markup import Child, Markup, join, tag
from tacit.report.numbers import NOTHING, count, interval, is_number, percent, plain, short
from tacit.report.run_files import Episodes, Record, RunFiles, is_score
from tacit.report.tables import Column, table

COLUMNS = (
    Column("evaluated", False),
    Column("success"),
    Column("95% interval", note="Wilson interval; several tries at one task count for less than as many tasks"),
    Column("won / played"),
    Column("score", note="mean graded outcome"),
    Column("steps", note="mean turns per episode"),
    Column("steps of a success"),
    Column("invalid", note="share of turns whose completion did not parse"),
    Column("ineffective", note="share of turns whose action the world refused"),
    Column("prompt tokens", note="mean per turn"),
    Column("written tokens", note="mean per turn"),
    Column("crashed"),
)


def final(run: RunFiles) -> Record | None:
    """The last evaluation of a finished run; an unfinished one has none."""
    return run.evaluations[-1] if run.finished and run.evaluations else None


def peak(run: RunFiles) -> Record | None:
    """The best evaluation of practice, or of anything where there was no practice."""
    practised = [e for e in run.evaluations if e.get("stage") == "rl"] or list(run.evaluations)
    return max(practised, key=success_of, default=None)


def success_of(score: Record) -> float:
    return score["successes"] / score["episodes"] if score["episodes"] else 0.0


def interval_of(score: Record) -> Sequence[float]:
    """As the evaluation says it; otherwise Wilson's, from its counts."""
    said = score.get("interval")
    if isinstance(said, list) and len(said) == 2 and all(map(is_number, said)):
        return said
    return wilson(score["successes"], score["episodes"])


def moment(score: Record) -> str:
    stage, step = score.get("stage", ""), score.get("step", 0)
    return "untrained" if stage == "untrained" else f"after {stage} {step}"


def evaluations(run: RunFiles) -> Markup:
    if not run.evaluations and not run.later:
        return tag("p", "The run has not been evaluated yet.", cls="quiet")
    parts: list[Child] = []
    best, last = peak(run), final(run)
    if run.evaluations:
        rows = []
        for e in run.evaluations:
            marks = [name for name, which in (("final", last), ("peak", best)) if which is e]
            label = [moment(e), *[[" ", tag("span", mark, cls="mark")] for mark in marks]]
            rows.append(_row(label, e))
        marked = [i for i, e in enumerate(run.evaluations) if e is last or e is best]
        parts.append(table(COLUMNS, rows, _panel(run.evaluations[-1]), marked))
    said = (run.summary or {}).get("further")
    further = [e for e in said if isinstance(e, Mapping) and is_score(e)] if isinstance(said, list) else []
    for panel in dict.fromkeys(str(e.get("panel")) for e in further):
        there = [e for e in further if str(e.get("panel")) == panel]
        parts.append(table(COLUMNS, [_row(moment(e), e) for e in there], _panel(there[-1])))
    if run.later:
        names = [str(r.get("checkpoint") or r.get("target") or "?") for r in run.later]
        priced = any(is_number(r.get("cost")) for r in run.later)
        rows = [
            [*_row(name, r), *([short(r.get("cost"))] if priced else []), _panel(r, brief=True)]
            for name, r in zip(names, run.later, strict=True)
        ]
        cost = [Column("cost", note="of all episodes, at the prices given")] if priced else []
        parts.append(table([*COLUMNS, *cost, Column("panel", False)], rows, "Measured later with tacit eval"))
    parts.append(_tries([*run.evaluations, *run.later]))
    return join(parts)


def _tries(scores: Sequence[Record]) -> Markup | None:
    """pass@k and SC@k, where tasks were played several times: a row per evaluation, a column per measure."""
    rows: list[tuple[str, dict[str, Child]]] = []
    for e in scores:
        told: dict[str, Child] = {}
        for name, label in (("pass", "pass@"), ("majority", "SC@")):
            values, sure = e.get(f"{name}_at"), e.get(f"{name}_interval")
            sure = sure if isinstance(sure, Mapping) else {}
            for k, value in values.items() if isinstance(values, Mapping) else ():
                told[f"{label}{k}"] = [percent(value), tag("div", interval(sure.get(k)), cls="quiet")]
        if told:
            rows.append((moment(e) if "stage" in e else str(e.get("checkpoint") or e.get("target") or "?"), told))
    # pass@1, pass@2, …, then SC@1, …: shorter names are smaller numbers.
    measures = sorted({measure for _, told in rows for measure in told}, key=lambda m: (not m.startswith("pass"), len(m), m))
    columns = [Column("evaluated", False), *map(Column, measures)]
    body = [[when, *(told.get(measure, NOTHING) for measure in measures)] for when, told in rows]
    return table(columns, body, "Several tries at a task, with 95% intervals") if rows else None


def families(found: Episodes | None, score: Record | None) -> Markup | None:
    """Success by family of tasks, from the evaluation where it says, else from its recorded episodes."""
    scores = _said_by_family(score) or (_counted(found.records) if found else {})
    if len(scores) < 2:
        return None
    title = found.title if found else moment(score or {})
    rows: list[list[Child]] = []
    for name, e in sorted(scores.items()):
        told = f"{count(e['successes'])} / {count(e['episodes'])}"
        rows.append([name, percent(success_of(e)), interval(interval_of(e)), told])
    known = [e for e in scores.values() if e["episodes"]]
    shares = [success_of(e) for e in known]
    sure = mean_interval(shares, [(low, high) for low, high in map(interval_of, known)])
    rows.append(["mean of the families", percent(sum(shares) / len(shares) if shares else None), interval(sure), ""])
    columns = [Column("family", False), Column("success"), Column("95% interval"), Column("won / played")]
    return table(columns, rows, f"By family, {title}", [len(rows) - 1])


def headline(run: RunFiles) -> list[tuple[str, str, str]]:
    """(label, number, what goes with it) for the top of the page."""
    told = []
    last, best = final(run), peak(run)
    if last is not None:
        told.append(("final success", percent(success_of(last)), f"{interval(interval_of(last))} {moment(last)}"))
    elif run.evaluations:
        newest = run.evaluations[-1]
        told.append(
            ("latest success, not final", percent(success_of(newest)), f"{interval(interval_of(newest))} {moment(newest)}")
        )
    if best is not None:
        told.append(("peak success", percent(success_of(best)), f"{interval(interval_of(best))} {moment(best)}"))
    return told


def _row(label: Child, e: Record) -> list[Child]:
    return [
        label,
        tag("b", percent(success_of(e))),
        interval(interval_of(e)),
        f"{count(e['successes'])} / {count(e['episodes'])}",
        plain(e.get("score"), 3),
        plain(e.get("steps")),
        plain(e.get("success_steps")) if e["successes"] else plain(None),
        percent(e.get("invalid")),
        percent(e.get("ineffective")),
        plain(e.get("prompt_tokens")),
        plain(e.get("completion_tokens")),
        count(e.get("crashed")),
    ]


def _panel(e: Record, brief: bool = False) -> str:
    """What was measured on, and how; in brief, without what seldom differs."""
    sampling = e.get("sampling")
    how = ""
    if isinstance(sampling, Mapping):
        how = ", " + ", ".join(
            f"{k.replace('_', ' ')} {v}"
            for k, v in sampling.items()
            if isinstance(v, int | float) and not (brief and k != "temperature")
        )
    return f"{'' if brief else 'Panel '}{e.get('panel', '?')}, hash {e.get('panel_hash', '?')}{how}"


def _said_by_family(score: Record | None) -> dict[str, Record]:
    said: Any = (score or {}).get("families")
    if not isinstance(said, Mapping):
        return {}
    return {str(name): entry for name, entry in said.items() if isinstance(entry, Mapping) and is_score(entry)}


def _counted(records: Sequence[Record]) -> dict[str, Record]:
    """By family, with intervals in which tries at one task count for what they are worth."""
    families: dict[str, dict[str, list[bool]]] = {}
    for record in records:
        families.setdefault(str(record.get("family", "")), {}).setdefault(record["task"], []).append(record["success"])
    counted: dict[str, Record] = {}
    for name, tasks in families.items():
        tries = [won for own in tasks.values() for won in own]
        interval = list(interval_over_tasks(list(tasks.values())))
        counted[name] = {"episodes": len(tries), "successes": sum(tries), "interval": interval}
    return counted
