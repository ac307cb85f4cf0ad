"""Evaluations, panel by panel. Final and peak are separate numbers: the peak was chosen for being high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.core.types import PLAIN
from tacit.report.numbers import interval, percent
from tacit.report.run_files import Record, RunFiles, table_of


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
