"""Check a draft against recorded episodes.

reads           no forbidden code in the source
runs            no exceptions or timeouts; valid constants
deterministic   same results in another process, with the episodes in another order
bounded         no state block longer than BOUND, also in a concatenation of all episodes
done            true exactly at the end of won episodes
rewards         events are rules of REWARDS; each claimed rule totals its claim in a won episode, and never more

A draft with only rewards skips `bounded` and `done`. The drafting model reads failure messages in its next prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.modules.drafting.sandbox import DraftError, Kind, Limits, Sandbox
from tacit.modules.drafting.tracker import COUNTS, DraftRules, Fields
from tacit.training.imitation import Recording

MAX_TIMEOUTS = 3  # give up after this many timeouts
MAX_STATE = 100_000  # characters of a state


@dataclass
class DraftTrace:
    """What the draft returned for each turn of one recorded episode."""

    blocks: list[str] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)
    events: list[list[str]] = field(default_factory=list)
    state: Any = None
    error: str = ""  # why it stopped early


def run_tracker(sandbox: Sandbox, goal: str, seen: Sequence[str], actions: Sequence[str]) -> DraftTrace:
    trace = DraftTrace()
    try:
        trace.state, block, done = sandbox.call("start", goal=goal, saw=seen[0])
        trace.blocks, trace.done = [block], [done]
        for turn, action in enumerate(actions, start=1):
            saw = seen[min(turn, len(seen) - 1)]
            trace.state, block, done, events = sandbox.call("update", state=trace.state, action=action, saw=saw)
            trace.blocks.append(block)
            trace.done.append(done)
            trace.events.append(events)
            if len(str(trace.state)) > MAX_STATE:
                trace.error = f"the state has more than {MAX_STATE} characters"
                return trace
    except DraftError as error:
        trace.error = str(error)
    return trace


@dataclass(frozen=True)
class Draft:
    source: str
    limits: Limits | None = None
    blocks: Mapping[Recording, Sequence[Fields]] | None = None  # for rewards only: fields of the world's own tracker, per turn

    @property
    def kind(self) -> Kind:
        return "tracker" if self.blocks is None else "rewards"

    def sandbox(self, seed: int = 0) -> Sandbox:
        return Sandbox(self.source, self.limits, seed, kind=self.kind)

    def follow(self, sandbox: Sandbox, episode: Recording) -> DraftTrace:
        if self.blocks is None:
            return run_tracker(sandbox, episode.goal, episode.seen, episode.actions)
        fields, trace, counts = self.blocks[episode], DraftTrace(), Counter[str]()  # one more entry than there are actions
        try:
            for turn, action in enumerate(episode.actions, start=1):
                before, saw = {**fields[turn - 1], COUNTS: dict(counts)}, episode.seen[min(turn, len(episode.seen) - 1)]
                events = sandbox.call("events", state=before, action=action, saw=saw, after=fields[turn])
                trace.events.append(events)
                counts.update(events)
        except DraftError as error:
            trace.error = str(error)
        return trace

    def follow_all(self, episodes: Sequence[Recording]) -> list[DraftTrace | None]:
        """A trace per episode; None for episodes after MAX_TIMEOUTS was reached."""
        sandbox, timeouts = self.sandbox(), 0
        traces: list[DraftTrace | None] = []
        try:
            for episode in episodes:
                if timeouts >= MAX_TIMEOUTS:
                    traces.append(None)
                    continue
                traces.append(self.follow(sandbox, episode))
                if not sandbox.alive:
                    timeouts += 1
                    sandbox = self.sandbox()
        finally:
            sandbox.close()
        return traces


CHECKS = ("reads", "runs", "deterministic", "bounded", "done", "rewards")
REWARD_CHECKS = ("reads", "runs", "deterministic", "rewards")  # for a draft without its own state block
MAX_LONG_TURNS = 400  # turns of the concatenated episode
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Failure:
    check: str
    what: str
    episode: int = 0  # line of the log; 0 if no episode is concerned
    turn: int = 0  # starts at 1; 0 is before the first action

    def __str__(self) -> str:
        where = f"episode of line {self.episode}, turn {self.turn}: " if self.episode else ""
        return f"{self.check}: {where}{self.what}"


@dataclass
class CheckReport:
    episodes: int = 0
    won: int = 0
    turns: int = 0
    failed_episodes: int = 0  # episodes that the draft could not follow to the end
    longest: int = 0  # characters of the longest state block
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    enforced_limits: dict[str, bool] = field(default_factory=dict)
    last_check: str = "rewards"  # the last check that ran
    checks: tuple[str, ...] = CHECKS  # checks that apply

    @property
    def passed(self) -> bool:
        return not self.failures

    def verdicts(self) -> dict[str, str]:
        """check -> `held`, `held in 8 of 9 episodes` if it broke in one, `failed 3 times`, or `not reached`"""
        times = Counter(failure.check for failure in self.failures)
        reached = CHECKS[: CHECKS.index(self.last_check) + 1]
        held = f"held in {self.episodes - self.failed_episodes} of {self.episodes} episodes" if self.failed_episodes else "held"
        return {
            check: f"failed {times[check]} times" if times[check] else held if check in reached else "not reached"
            for check in self.checks
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "episodes": self.episodes,
            "won": self.won,
            "turns": self.turns,
            "longest_block": self.longest,
            "checks": self.verdicts(),
            "failures": [vars(failure) for failure in self.failures],
            "notes": self.notes,
            "held_by_the_kernel": self.enforced_limits,
        }


def check_draft(draft: Draft, episodes: Sequence[Recording]) -> CheckReport:
    report = CheckReport(len(episodes), sum(e.success for e in episodes), sum(len(e.actions) for e in episodes))
    report.checks = CHECKS if draft.blocks is None else REWARD_CHECKS
    try:
        _run_checks(draft, episodes, report)
    except DraftError as error:  # it could not be loaded, at first or again
        report.failures.append(Failure("runs", str(error)))
        report.last_check = "runs"
    return report


def _run_checks(draft: Draft, episodes: Sequence[Recording], report: CheckReport) -> None:
    has_state = draft.blocks is None
    with draft.sandbox() as sandbox:
        report.enforced_limits = dict(sandbox.enforced_limits)
        if sandbox.findings:
            report.failures = [Failure("reads", reason) for reason in sandbox.findings]
            report.last_check = "reads"
            return
        rules = DraftRules.of(sandbox.constants, draft.kind)
    traces = draft.follow_all(episodes)
    for episode, trace in zip(episodes, traces, strict=True):
        if trace is not None and trace.error:
            turn = len(trace.events) + (bool(trace.blocks) if has_state else 1)
            report.failed_episodes += 1
            report.failures.append(Failure("runs", trace.error, episode.line, turn))
    if skipped := sum(trace is None for trace in traces):
        report.failures.append(Failure("runs", f"given up: {skipped} episodes were not looked at any more"))
    if skipped or report.failed_episodes == report.episodes:
        report.last_check = "runs"
        return
    traced = [(e, c) for e, c in zip(episodes, traces, strict=True) if c is not None]
    _check_determinism(draft, traced, rules, report)
    for episode, trace in traced:
        _check_rewards(episode, trace, rules, report)
        if has_state:
            _check_blocks(episode, trace, rules, report)
    if has_state:
        _check_long_episode(draft, episodes, rules, report)
    _add_notes(draft, traced, report)


def _check_determinism(
    draft: Draft, traced: Sequence[tuple[Recording, DraftTrace]], rules: DraftRules, report: CheckReport
) -> None:
    """Run again with another hash seed and the episodes in reverse order; results must be the same."""
    completed = [(e, c) for e, c in traced if not c.error][::-1]
    try:
        with draft.sandbox(seed=1) as sandbox:
            if DraftRules.of(sandbox.constants, draft.kind) != rules:
                report.failures.append(Failure("deterministic", "another BOUND, REWARDS or CLAIMS the second time"))
            for episode, first_trace in completed:
                if not sandbox.alive:
                    return
                second_trace = draft.follow(sandbox, episode)
                first, second = (list(zip(trace.blocks, trace.done, strict=True)) for trace in (first_trace, second_trace))
                pairs = enumerate(zip(first, second, strict=False))
                turn = next((t for t, (one, other) in pairs if one != other), None)
                if turn is None and first_trace.events != second_trace.events:
                    events = enumerate(zip(first_trace.events, second_trace.events, strict=False), 1)
                    turn = next((t for t, (one, other) in events if one != other), len(second_trace.events))
                if turn is not None:
                    what = "another block, `done` or reward the second time"
                    report.failures.append(Failure("deterministic", what, episode.line, turn))
    except DraftError as error:
        report.failures.append(Failure("deterministic", f"it could be loaded, and the second time it cannot: {error}"))


def _check_blocks(episode: Recording, trace: DraftTrace, rules: DraftRules, report: CheckReport) -> None:
    """No block is longer than BOUND, and `done` is true exactly at the end of a won episode."""
    report.longest = max([report.longest, *map(len, trace.blocks)])
    if (long := next((turn for turn, block in enumerate(trace.blocks) if len(block) > rules.bound), None)) is not None:
        what = f"a block of {len(trace.blocks[long])} characters, over the BOUND of {rules.bound}"
        report.failures.append(Failure("bounded", what, episode.line, long))
    last = len(episode.actions)
    if (early := next((turn for turn, done in enumerate(trace.done) if done and turn < last), None)) is not None:
        report.failures.append(Failure("done", "done, and it was not won yet", episode.line, early))
    # Where the observation after the last action was not recorded, the end is not known.
    if not trace.error and len(episode.seen) > last and trace.done[last] != episode.success:
        what = "won, and not done" if episode.success else "done, and it was not won"
        report.failures.append(Failure("done", what, episode.line, last))


def _check_rewards(episode: Recording, trace: DraftTrace, rules: DraftRules, report: CheckReport) -> None:
    for turn, events in enumerate(trace.events, start=1):
        if unknown_rule := rules.unknown(tuple(events)):
            report.failures.append(Failure("rewards", f"{unknown_rule!r} is no rule of REWARDS", episode.line, turn))
            return
    if trace.error:
        return
    end_is_known = len(episode.seen) > len(episode.actions)
    times = Counter(event for events in trace.events for event in events)
    for rule, claim in rules.claims.items():
        total = times[rule] * rules.progress[rule]
        if total > claim + TOLERANCE or (episode.success and end_is_known and total < claim - TOLERANCE):
            kind = "won" if episode.success else "lost"
            what = f"{rule} adds up to {total:g} in a {kind} episode, and the claim is {claim:g}"
            report.failures.append(Failure("rewards", what, episode.line, len(trace.events)))


def _check_long_episode(draft: Draft, episodes: Sequence[Recording], rules: DraftRules, report: CheckReport) -> None:
    """Concatenate the turns of all episodes into one, to find a state block that keeps growing."""
    if not episodes:
        return
    turns = [(a, s) for e in episodes for a, s in zip(e.actions, (*e.seen[1:], e.seen[-1]), strict=False)][:MAX_LONG_TURNS]
    with draft.sandbox() as sandbox:
        trace = run_tracker(sandbox, episodes[0].goal, [episodes[0].seen[0], *(s for _, s in turns)], [a for a, _ in turns])
    long = next((turn for turn, block in enumerate(trace.blocks) if len(block) > rules.bound), None)
    where = "of an episode that goes on through the turns of the others"
    if trace.error:
        report.failures.append(Failure("bounded", f"turn {len(trace.events) + 1} {where}: {trace.error}"))
    elif long is not None:
        what = f"turn {long} {where}: {len(trace.blocks[long])} characters, over the BOUND of {rules.bound}"
        report.failures.append(Failure("bounded", what))


def _add_notes(draft: Draft, traced: Sequence[tuple[Recording, DraftTrace]], report: CheckReport) -> None:
    """Note what the episodes cannot show."""
    ends = "`done` is" if draft.blocks is None else "the claims are"
    open_ended = sum(len(e.seen) <= len(e.actions) for e, _ in traced)
    if open_ended:
        report.notes.append(f"{open_ended} episodes have no observation after the last action: {ends} not checked at their end")
    if report.won == report.episodes:
        report.notes.append(f"no lost episodes: {ends} not checked against an episode that ends without success")
    if not report.won:
        report.notes.append("no won episodes: `done` and the claims are hardly checked")
    if draft.blocks is not None:
        return
    won = [e for e, c in traced if e.success and c.done and c.done[-1]]
    others = [(e, next((o.goal for o in won if o.goal != e.goal), "")) for e in won]
    swapped = [(e, goal) for e, goal in others if goal]
    if swapped:
        with draft.sandbox() as sandbox:
            traces = [run_tracker(sandbox, goal, e.seen, e.actions) for e, goal in swapped]
        also_done = sum(bool(trace.done and trace.done[-1] and not trace.error) for trace in traces)
        if also_done == len(swapped):
            report.notes.append(
                f"`done` does not depend on the goal: all {also_done} won episodes are also done with another episode's goal"
            )
