"""Alarms: warnings that a policy does not learn, is collapsing, or gets credit that does not distinguish steps. They are pure
functions of a run's metrics and never stop it. docs/guides/debug_training.md lists them.

Most compare the mean of the first WINDOW iterations ("at the start") with that of the last WINDOW ("now"), so one unusual batch
raises nothing. `unparsed`, `uncredited`, `ungraded`, `unskilled`, `crashed` and `overlong` can be raised from the first
iteration on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit.core.progress import pluralize
from tacit.rollout.worlds import SHORTER_PROMPTS
from tacit.runs.files import read_objects, write_text

Record = Mapping[str, Any]  # metrics of an iteration; checks skip it if their metric is missing or not finite
ALARMS = "alarms.jsonl"
WINDOW = 3
REPEATED, REPEATED_RISE = 0.5, 0.2  # share of repeated actions, and its rise since the start
VALID_DROP = 0.2  # below the best share of valid completions so far
LARGEST_PART = 0.5  # share of a group's steps in its largest cluster
SAMPLER_GAP = 0.1  # mean difference between sampler and trainer log-probabilities, at the same weights
OVERLONG = 0.1  # share of episodes whose prompt exceeds the context
UNGRADED = UNSKILLED = 0.5  # share of ungraded episodes, and of episodes without hindsight skill
MASTERED, BROKEN = 0.5, 0.5  # success rate, and share of crashed episodes, above which uniform groups have another cause
FALL, FALL_DEVIATIONS = 0.1, 3.0  # fall of success since the start: absolute, and in standard errors
UNLEARNED = "RL is undoing earlier training; try a lower --lr or a larger --kl. The best checkpoint is kept"


@dataclass(frozen=True)
class Alarm:
    name: str
    step: int  # the iteration in which it was first raised
    message: str
    example: str = ""  # an unparsed completion or a world's error

    def __str__(self) -> str:
        return f"{self.message}. Example: {self.example}" if self.example else self.message


KEYS = frozenset(Alarm.__dataclass_fields__)


def check_alarms(records: Sequence[Record]) -> list[Alarm]:
    """The alarms after the last of these iterations. `records` begin with the first iteration of RL."""
    if not records:
        return []
    step = int(records[-1].get("step", len(records)))
    messages = [(name, check(records)) for name, check in CHECKS.items()]
    return [Alarm(name, step, message) for name, message in messages if message]


def first_alarms(records: Sequence[Record]) -> list[Alarm]:
    """Each alarm once, at the iteration in which it was first raised. A resumed run does not repeat these."""
    first: dict[str, Alarm] = {}
    for end in range(1, len(records) + 1):
        for alarm in check_alarms(records[:end]):
            first.setdefault(alarm.name, alarm)
    return list(first.values())


def evaluation_alarms(evaluations: Sequence[Record]) -> list[Alarm]:
    """An alarm at the first RL evaluation below the last one before RL, if their intervals do not overlap. Training success may
    rise while success on the panel falls."""
    before = [e for e in evaluations if e["stage"] != "rl"][-1:]
    for now in (e for e in evaluations if before and e["stage"] == "rl"):
        start = before[0]
        if start["success"] - now["success"] > FALL and now["interval"][1] < start["interval"][0]:
            fell = f"success on the panel fell from {start['success']:.1%} before RL to {now['success']:.1%}"
            return [Alarm("measured_fall", now["step"], f"{fell}: {UNLEARNED}")]
    return []


def _values(records: Sequence[Record], name: str) -> list[float]:
    return [float(r[name]) for r in records if r.get(name) is not None and math.isfinite(r[name])]


def _start_and_now(records: Sequence[Record], name: str) -> tuple[float, float] | None:
    """Means over the first and the last WINDOW values; None if there are fewer than 2·WINDOW."""
    values = _values(records, name)
    return (sum(values[:WINDOW]) / WINDOW, sum(values[-WINDOW:]) / WINDOW) if len(values) >= 2 * WINDOW else None


def _unparsed(records: Sequence[Record]) -> str:
    now = records[-1]
    if not now.get("turns") or now.get("valid", 1.0) > 0:
        return ""
    ran = now.get("effective") or 0.0
    what = f"no completion has the full format, though {ran:.0%} of the actions run" if ran else "no completion parses"
    return f"{what}: teach the format by imitation (--sft.steps), raise --max-tokens, try --style bare, or use a larger model"


def _uncredited(records: Sequence[Record]) -> str:
    last = [r for r in records if r.get("credited_groups") is not None][-WINDOW:]
    if not last or any(r["credited_groups"] > 0 for r in last):
        return ""
    success = sum(r.get("success", 0.0) for r in last) / len(last)
    broken = sum(r.get("crashed") or 0 for r in last) / max(1, sum(r.get("episodes") or 0 for r in last))
    if success > MASTERED or broken > BROKEN:
        return ""
    when = "this iteration" if len(last) == 1 else f"the last {len(last)} iterations"
    return (
        f"no group of {when} is mixed, and {success:.0%} of the episodes succeed, so all advantages are 0: imitate first or "
        "longer (--sft.steps), or use a stronger --model, easier tasks (--families) or larger groups (--group-size)"
    )


def _fall(records: Sequence[Record]) -> str:
    """Standard errors over groups, since episodes of a group share a task. Over the groups of WINDOW iterations, σ² = mean of
    the variances within iterations + variance of their means."""
    complete = [r for r in records if all(_values([r], name) for name in ("success", "groups", "group_spread"))]
    if len(complete) < 2 * WINDOW:
        return ""
    means, squared_errors = [], []
    for part in (complete[:WINDOW], complete[-WINDOW:]):
        successes = [float(r["success"]) for r in part]
        mean = sum(successes) / len(part)
        variance = sum(r["group_spread"] ** 2 + (s - mean) ** 2 for r, s in zip(part, successes, strict=True)) / len(part)
        means.append(mean)
        squared_errors.append(variance / max(1, sum(r["groups"] for r in part) - 1))
    if means[0] - means[1] <= max(FALL, FALL_DEVIATIONS * math.sqrt(sum(squared_errors))):
        return ""
    return f"success fell from {means[0]:.0%} at the start to {means[1]:.0%}: {UNLEARNED}"


def _crashed(records: Sequence[Record]) -> str:
    crashed, episodes = (records[-1].get(name) or 0 for name in ("crashed", "episodes"))
    share = f"{crashed:.0f} of {pluralize(round(episodes), 'episode')}"
    return f"{share} ended because the world broke; they count as failures and are not trained on" if crashed else ""


def _overlong(records: Sequence[Record]) -> str:
    share = records[-1].get("stop_prompt_too_long") or 0.0
    what = f"{share:.0%} of the episodes ended because the prompt does not fit the model's context"
    return f"{what}: {SHORTER_PROMPTS}" if share > OVERLONG else ""


def _sampler(records: Sequence[Record]) -> str:
    now, gap = records[-1], _values(records[-1:], "sampler_gap")
    if not gap or gap[0] <= SAMPLER_GAP or now.get("versions_behind"):
        return ""
    return (
        f"the log-probabilities of sampler and trainer differ by {gap[0]:.2g} on fresh tokens: check that both use the same "
        "weights, number format, chat template and truncation. Until then importance ratios are wrong"
    )


def _repetition(records: Sequence[Record]) -> str:
    rates = _start_and_now(records, "repeated")
    if rates is None or rates[1] <= max(REPEATED, rates[0] + REPEATED_RISE):
        return ""
    return (
        f"{rates[1]:.0%} of all actions repeat an earlier one of their episode, {rates[0]:.0%} at the start: the policy loops"
    )


def _valid(records: Sequence[Record]) -> str:
    values = _values(records, "valid")
    if len(values) < 2 * WINDOW:
        return ""
    means = [sum(values[i : i + WINDOW]) / WINDOW for i in range(len(values) - WINDOW + 1)]
    best, now = max(means), means[-1]
    return (
        f"{now:.0%} of all completions parse, {best:.0%} at best: the policy is losing the format"
        if now < best - VALID_DROP
        else ""
    )


def _giant(records: Sequence[Record]) -> str:
    values = _values(records, "parts_largest")[-WINDOW:]
    if len(values) < WINDOW or (now := sum(values) / len(values)) <= LARGEST_PART:
        return ""
    radius = records[-1].get("radius")
    remedy = "a smaller --epsilon (or --adaptive)" if radius is None else f"an --epsilon below the {radius:.2g} of --adaptive"
    return (
        f"the largest cluster holds {now:.0%} of a group's steps, so credit compares dissimilar steps: try {remedy}, "
        "another --layer, or `tacit calibrate`"
    )


def _ungraded(records: Sequence[Record]) -> str:
    values = _values(records, "judge_unread")
    if not values or values[-1] <= UNGRADED:
        return ""
    return (
        f"the judge's answer has no readable grade in {values[-1]:.0%} of episodes, which adds nothing to their reward: check "
        "that its model or endpoint answers as docs/guides/rewards.md shows"
    )


def _unskilled(records: Sequence[Record]) -> str:
    # With several worlds, each has its own metric.
    worst = max((v for name, v in records[-1].items() if name.endswith("hindsight/without_skill")), default=0.0)
    if worst <= UNSKILLED:
        return ""
    return (
        f"hindsight has no skill for {worst:.0%} of episodes, so their tokens get none of its credit: see "
        "hindsight/answers.jsonl of the run, which has the model's answers and the reasons"
    )


def _drift(metric: str, factor: float, message: str) -> Callable[[Sequence[Record]], str]:
    """A check that the metric has not risen above `factor` times its start, or fallen below it for a factor under 1."""

    def check(records: Sequence[Record]) -> str:
        levels = _start_and_now(records, metric)
        if levels is None or levels[0] <= 0:
            return ""
        start, now = levels
        beyond = now > factor * start if factor > 1 else now < factor * start
        return message.format(start=start, now=now) if beyond else ""

    return check


CHECKS: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "unparsed": _unparsed,
    "uncredited": _uncredited,
    "fall": _fall,
    "ungraded": _ungraded,
    "unskilled": _unskilled,
    "crashed": _crashed,
    "overlong": _overlong,
    "sampler": _sampler,
    "entropy_low": _drift("entropy", 0.1, "entropy fell from {start:.3g} to {now:.3g}: the policy hardly explores; try a "
                          "larger --entropy or a lower --lr"),
    "entropy_high": _drift("entropy", 3.0, "entropy rose from {start:.3g} to {now:.3g}: the policy is collapsing; try a lower "
                           "--lr or a larger --kl"),
    "length_high": _drift("completion_tokens", 2.0, "completions grew from {start:.1f} to {now:.1f} tokens: look at some, and "
                          "check --max-tokens"),
    "length_low": _drift("completion_tokens", 1 / 3, "completions shrank from {start:.1f} to {now:.1f} tokens: look at some; "
                         "the reasoning may be gone, or actions cut short"),
    "repetition": _repetition,
    "valid": _valid,
    "giant": _giant,
}  # fmt: skip


class AlarmMonitor:
    """Raises each alarm once during a run and writes it to alarms.jsonl. Alarms depend on the metrics alone, so a resumed run
    writes the same file as an uninterrupted one."""

    def __init__(self, run: Path) -> None:
        self._path = run / ALARMS
        self._records: list[Record] = []
        self._raised: dict[str, Alarm] = {}

    def restore(self, records: Sequence[Record], evaluations: Sequence[Record] = ()) -> None:
        self._records = list(records)
        examples = {(alarm.name, alarm.step): alarm.example for alarm in read_alarms(self._path.parent)}
        self._raised = {
            alarm.name: replace(alarm, example=examples.get((alarm.name, alarm.step), ""))
            for alarm in sorted([*first_alarms(self._records), *evaluation_alarms(evaluations)], key=lambda alarm: alarm.step)
        }
        if self._raised or self._path.exists():
            self._write()

    def see(self, step: int, metrics: Record, examples: Mapping[str, str] | None = None) -> list[Alarm]:
        """Add an iteration; return the alarms raised for the first time. `examples`: alarm name -> example to show."""
        self._records.append({"step": step, **metrics})
        alarms = check_alarms(self._records)
        return self._raise_new([replace(alarm, example=(examples or {}).get(alarm.name, "")) for alarm in alarms])

    def see_measured(self, evaluations: Sequence[Record]) -> list[Alarm]:
        """Check all evaluations so far; return the alarms raised for the first time."""
        return self._raise_new(evaluation_alarms(evaluations))

    def _raise_new(self, alarms: Sequence[Alarm]) -> list[Alarm]:
        fresh = [alarm for alarm in alarms if alarm.name not in self._raised]
        if fresh:
            self._raised |= {alarm.name: alarm for alarm in fresh}
            self._write()
        return fresh

    def _write(self) -> None:
        records = [{k: v for k, v in asdict(alarm).items() if k != "example" or v} for alarm in self._raised.values()]
        write_text(self._path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def read_alarms(run: Path) -> list[Alarm]:
    records = [record for record in read_objects(run / ALARMS) if set(record) <= KEYS]
    kinds = {"name": str, "step": int, "message": str}
    return [Alarm(**record) for record in records if all(isinstance(record.get(key), kind) for key, kind in kinds.items())]
