"""Alarms of a policy that does not learn or is collapsing, or of credit that tells no step from another: pure functions over
the numbers of a run's iterations. They warn, say what helps, and stop nothing. docs/guides/debug_training.md lists them.

"At the start" is the mean of the first iterations, "now" the mean of the last ones: one odd batch rings nothing. What is
unparsed, uncredited, ungraded, unskilled or crashed rings at once: where an iteration takes half an hour, its first one says
enough.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit.core.progress import pluralize
from tacit.runs.files import write_text

Record = Mapping[str, Any]
"""the metrics of one iteration; one that lacks a number, or has none that is finite, is passed over"""


@dataclass(frozen=True)
class Thresholds:
    window: int = 3
    """iterations that "at the start" and "now" are means over"""
    entropy_low: float = 0.1
    """of the entropy at the start"""
    entropy_high: float = 3.0
    """of the entropy at the start"""
    length_high: float = 2.0
    """of the length at the start"""
    length_low: float = 1 / 3
    """of the length at the start"""
    repeated: float = 0.5
    """share of actions"""
    repeated_rise: float = 0.2
    """above the share at the start"""
    valid_drop: float = 0.2
    """below the best share so far"""
    largest_part: float = 0.5
    """share of a group's steps in its largest part"""
    sampler_gap: float = 0.1
    """mean difference of the log-probability of a token, by the policy that wrote it, between sampler and trainer"""
    ungraded: float = 0.5
    """share of a judge's answers"""
    unskilled: float = 0.5
    """share of the episodes that hindsight looked back on"""
    mastered: float = 0.5
    """success above which groups that are all alike are no trouble"""
    broken: float = 0.5
    """share of crashed episodes above which these, and not the policy, are why groups are all alike"""
    fall: float = 0.1
    """of the success, below that at the start"""
    fall_deviations: float = 3.0
    """standard errors of the difference that it must be besides: one looks after every iteration"""


DEFAULTS = Thresholds()
UNLEARNED = "practice unlearns what was there; a lower --lr or a larger --kl may hold it, and the best checkpoint is kept"


@dataclass(frozen=True)
class Alarm:
    name: str
    step: int
    """the iteration it first rang at"""
    message: str
    example: str = ""
    """what it rang for, where that can be shown: a completion that does not parse, an error of the world"""

    def __str__(self) -> str:
        return f"{self.message}. This is one: {self.example}" if self.example else self.message


def check_alarms(records: Sequence[Record], thresholds: Thresholds = DEFAULTS) -> list[Alarm]:
    """The alarms that ring after the last of these iterations, the first of which are the start of practice."""
    if not records:
        return []
    step = int(records[-1].get("step", len(records)))
    found = [(name, check(records, thresholds)) for name, check in CHECKS.items()]
    return [Alarm(name, step, message) for name, message in found if message]


def first_alarms(records: Sequence[Record], thresholds: Thresholds = DEFAULTS) -> list[Alarm]:
    """Each alarm that rang at any time, once, at the iteration it first rang: what a run that is resumed has already said."""
    first: dict[str, Alarm] = {}
    for end in range(1, len(records) + 1):
        for alarm in check_alarms(records[:end], thresholds):
            first.setdefault(alarm.name, alarm)
    return list(first.values())


def _unparsed(records: Sequence[Record], t: Thresholds) -> str:
    now = records[-1]
    if not now.get("turns") or now.get("valid", 1.0) > 0:
        return ""
    ran = now.get("effective") or 0.0
    what = f"no completion has the full format, though {ran:.0%} of the actions run" if ran else "no completion parses"
    return (
        f"{what}: imitation first, or more of it (--sft.steps), teaches the format; a "
        "longer --max-tokens lets an answer come to its end, --style bare asks for less, and a larger model may know how"
    )


def _uncredited(records: Sequence[Record], t: Thresholds) -> str:
    last = [r for r in records if r.get("credited_groups") is not None][-t.window :]
    if not last or any(r["credited_groups"] > 0 for r in last):
        return ""
    success = sum(r.get("success", 0.0) for r in last) / len(last)
    broken = sum(r.get("crashed") or 0 for r in last) / max(1, sum(r.get("episodes") or 0 for r in last))
    if success > t.mastered or broken > t.broken:
        return ""
    when = "this iteration" if len(last) == 1 else f"the last {len(last)} iterations"
    return (
        f"no group of {when} is mixed, and {success:.0%} of the episodes succeed: there is nothing to learn from; imitation "
        "first, or more of it (--sft.steps), a stronger --model, easier tasks (--families) or more tries (--group-size) give "
        "it something"
    )


def _fall(records: Sequence[Record], t: Thresholds) -> str:
    """A run that recorded no groups says nothing here: its episodes alone do not tell how far luck goes."""
    known = [r for r in records if all(_values([r], name) for name in ("success", "groups", "group_spread"))]
    if len(known) < 2 * t.window:
        return ""
    (start, early), (now, late) = (_over_groups(part) for part in (known[: t.window], known[-t.window :]))
    if start - now <= max(t.fall, t.fall_deviations * math.sqrt(early + late)):
        return ""
    return f"success fell from {start:.0%} at the start to {now:.0%}: {UNLEARNED}"


def _over_groups(records: Sequence[Record]) -> tuple[float, float]:
    """(mean success, the square of its standard error), a group being the unit: its episodes share a task, and tasks differ.

    Of the groups of all these iterations, σ² = mean of the variances within iterations + variance of their means.
    """
    successes = [float(r["success"]) for r in records]
    mean, groups = sum(successes) / len(successes), sum(r["groups"] for r in records)
    within = sum(r["group_spread"] ** 2 for r in records) / len(records)
    between = sum((success - mean) ** 2 for success in successes) / len(records)
    return mean, (within + between) / max(1, groups - 1)


def evaluation_alarms(evaluations: Sequence[Record], t: Thresholds = DEFAULTS) -> list[Alarm]:
    """The first evaluation of practice that is below the last one before it, where their intervals leave no doubt: what is
    practised may go well while what is kept back is lost."""
    before = [e for e in evaluations if e["stage"] != "rl"][-1:]
    for now in (e for e in evaluations if before and e["stage"] == "rl"):
        start = before[0]
        if start["success"] - now["success"] > t.fall and now["interval"][1] < start["interval"][0]:
            fell = f"success on the panel fell from {start['success']:.1%} before practice to {now['success']:.1%}"
            return [Alarm("measured_fall", now["step"], f"{fell}: {UNLEARNED}")]
    return []


def _crashed(records: Sequence[Record], t: Thresholds) -> str:
    crashed, episodes = (records[-1].get(name) or 0 for name in ("crashed", "episodes"))
    if not crashed:
        return ""
    share = f"{crashed:.0f} of {pluralize(round(episodes), 'episode')}"
    return f"{share} ended because the world broke; they count as failures and teach nothing"


def _sampler(records: Sequence[Record], t: Thresholds) -> str:
    now, gap = records[-1], _values(records[-1:], "sampler_gap")
    if not gap or gap[0] <= t.sampler_gap or now.get("versions_behind"):
        return ""
    return (
        f"the trainer's log-probabilities are {gap[0]:.2g} from what the sampler said of its own fresh tokens: it samples from "
        "other weights, or computes otherwise (number format, chat template, truncation); what is learned is not what was done"
    )


def _drift(metric: str, limit: str, message: str) -> Callable[[Sequence[Record], Thresholds], str]:
    """Rings if the metric is now beyond `limit` times what it was at the start: above it for `…_high`, below it for `…_low`."""

    def check(records: Sequence[Record], t: Thresholds) -> str:
        start, now = _start_and_now(records, metric, t.window)
        if now is None or start is None or start <= 0:
            return ""
        most = getattr(t, limit) * start
        return message.format(start=start, now=now) if (now > most if limit.endswith("_high") else now < most) else ""

    return check


def _repetition(records: Sequence[Record], t: Thresholds) -> str:
    start, now = _start_and_now(records, "repeated", t.window)
    if now is None or start is None or now <= t.repeated or now <= start + t.repeated_rise:
        return ""
    return (
        f"{now:.0%} of all actions had been taken before in their episode, {start:.0%} at the start: the policy goes in circles"
    )


def _valid(records: Sequence[Record], t: Thresholds) -> str:
    values = _values(records, "valid")
    if len(values) < 2 * t.window:
        return ""
    means = [sum(values[i : i + t.window]) / t.window for i in range(len(values) - t.window + 1)]
    best, now = max(means), means[-1]
    if now >= best - t.valid_drop:
        return ""
    return f"{now:.0%} of all completions parse, {best:.0%} at best: the format is being forgotten"


def _giant(records: Sequence[Record], t: Thresholds) -> str:
    values = _values(records, "parts_largest")[-t.window :]
    if len(values) < t.window or (now := sum(values) / len(values)) <= t.largest_part:
        return ""
    radius = records[-1].get("radius")
    apart = "a smaller --epsilon (or --adaptive)" if radius is None else f"an --epsilon below the {radius:.2g} of --adaptive"
    return (
        f"the largest part holds {now:.0%} of a group's steps: what is compared there has little in common; {apart}, another "
        "--layer, or what `tacit calibrate` finds may tell steps apart"
    )


def _ungraded(records: Sequence[Record], t: Thresholds) -> str:
    values = _values(records, "judge_unread")
    if not values or values[-1] <= t.ungraded:
        return ""
    return (
        f"the judge's answers have no grade that can be read, in {values[-1]:.0%} of episodes: it adds nothing to rewards; "
        "see that its model or endpoint answers as docs/guides/rewards.md shows"
    )


def _unskilled(records: Sequence[Record], t: Thresholds) -> str:
    # where there are several worlds, each has its own
    worst = max((v for name, v in records[-1].items() if name.endswith("hindsight/without_skill")), default=0.0)
    if worst <= t.unskilled:
        return ""
    return (
        f"hindsight has no skill for {worst:.0%} of episodes, whose tokens get none of its credit; what a model answered "
        "is in hindsight/answers.jsonl of the run, and each of these has its reason"
    )


CHECKS: Mapping[str, Callable[[Sequence[Record], Thresholds], str]] = {
    "unparsed": _unparsed,
    "uncredited": _uncredited,
    "fall": _fall,
    "ungraded": _ungraded,
    "unskilled": _unskilled,
    "crashed": _crashed,
    "sampler": _sampler,
    "entropy_low": _drift("entropy", "entropy_low", "entropy fell from {start:.3g} to {now:.3g}: the policy hardly explores "
                          "any more; a higher --entropy or a lower --lr may keep it alive"),
    "entropy_high": _drift("entropy", "entropy_high", "entropy rose from {start:.3g} to {now:.3g}: the policy is coming apart; "
                           "a lower --lr or a larger --kl may hold it"),
    "length_high": _drift("completion_tokens", "length_high", "completions grew from {start:.1f} to {now:.1f} tokens: look at "
                          "what is written, and at --max-tokens"),
    "length_low": _drift("completion_tokens", "length_low", "completions shrank from {start:.1f} to {now:.1f} tokens: thoughts "
                         "may be gone, or actions cut short"),
    "repetition": _repetition,
    "valid": _valid,
    "giant": _giant,
}  # fmt: skip


def _start_and_now(records: Sequence[Record], name: str, window: int) -> tuple[float | None, float | None]:
    """Means over the first and the last `window` values; None until they are different iterations."""
    values = _values(records, name)
    if len(values) < 2 * window:
        return None, None
    return sum(values[:window]) / window, sum(values[-window:]) / window


def _values(records: Sequence[Record], name: str) -> list[float]:
    return [float(r[name]) for r in records if r.get(name) is not None and math.isfinite(r[name])]


# Says once, while a run goes on, that its policy does not learn or seems to collapse; `alarms.jsonl` keeps what was said.

ALARMS = "alarms.jsonl"


class AlarmMonitor:
    """Holds the numbers of every iteration of practice. Alarms follow from them alone, so a resumed run, given the numbers it
    kept, ends with the file of one that was never killed."""

    def __init__(self, run: Path) -> None:
        self._path = run / ALARMS
        self._records: list[Mapping[str, Any]] = []
        self._rung: dict[str, Alarm] = {}

    def restore(self, records: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin again after these iterations and evaluations."""
        self._records = list(records)
        examples = {(alarm.name, alarm.step): alarm.example for alarm in read_alarms(self._path.parent)}
        self._rung = {
            alarm.name: replace(alarm, example=examples.get((alarm.name, alarm.step), ""))
            for alarm in sorted([*first_alarms(self._records), *evaluation_alarms(evaluations)], key=lambda alarm: alarm.step)
        }
        if self._rung or self._path.exists():
            self._write()

    def see(self, step: int, metrics: Mapping[str, Any], examples: Mapping[str, str] | None = None) -> list[Alarm]:
        """Alarms that ring for the first time. `examples` are what they would show, by name."""
        self._records.append({"step": step, **metrics})
        found = check_alarms(self._records)
        return self._ring([replace(alarm, example=(examples or {}).get(alarm.name, "")) for alarm in found])

    def see_measured(self, evaluations: Sequence[Mapping[str, Any]]) -> list[Alarm]:
        """The same of all evaluations until now."""
        return self._ring(evaluation_alarms(evaluations))

    def _ring(self, alarms: Sequence[Alarm]) -> list[Alarm]:
        fresh = [alarm for alarm in alarms if alarm.name not in self._rung]
        if fresh:
            self._rung |= {alarm.name: alarm for alarm in fresh}
            self._write()
        return fresh

    def _write(self) -> None:
        write_text(self._path, "".join(json.dumps(_record(alarm), ensure_ascii=False) + "\n" for alarm in self._rung.values()))


def _record(alarm: Alarm) -> dict[str, Any]:
    return {name: value for name, value in asdict(alarm).items() if name != "example" or value}


def read_alarms(run: Path) -> list[Alarm]:
    """What a run warned of."""
    path = run / ALARMS
    if not path.exists():
        return []
    return [Alarm(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]
