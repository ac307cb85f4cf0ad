"""A draft held against every recorded episode: what it must be, and where it is not.

reads           nothing in its text that a draft may not have
runs            no exception, no call without an end, constants as they must be
deterministic   the same in another process, with the episodes in another order
bounded         no block over its BOUND, in these episodes and in one that goes on through all of them
done            exactly when won: not before the last action, then, and never in a lost episode
rewards         only rules of its table; each claimed rule adds up to its claim in a won episode, and never to more

Of rewards that are drafted over a world's own tracker, `bounded` and `done` are the world's business and are not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.modules.drafting.fence import DraftFailed, Fence, Limits
from tacit.modules.drafting.tracker import COUNTS, Fields, Terms
from tacit.training.recordings import Recording

# A draft taken along recorded episodes, turn by turn, behind its fence.

MOST_HUNG = 3
"""calls without an end after which a draft is given up"""
MOST_STATE = 100_000
"""characters of a state"""


@dataclass
class Course:
    """One episode as the draft followed it."""

    blocks: list[str] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)
    events: list[list[str]] = field(default_factory=list)
    state: Any = None
    broke: str = ""
    """why it goes no further"""


def follow(fence: Fence, goal: str, seen: Sequence[str], actions: Sequence[str]) -> Course:
    course = Course()
    try:
        course.state, block, done = fence.call("start", goal=goal, saw=seen[0])
        course.blocks, course.done = [block], [done]
        for turn, action in enumerate(actions, start=1):
            saw = seen[min(turn, len(seen) - 1)]
            course.state, block, done, events = fence.call("update", state=course.state, action=action, saw=saw)
            course.blocks.append(block)
            course.done.append(done)
            course.events.append(events)
            if len(str(course.state)) > MOST_STATE:
                course.broke = f"the state has more than {MOST_STATE} characters"
                return course
    except DraftFailed as error:
        course.broke = str(error)
    return course


def follow_rewards(fence: Fence, told: Sequence[Fields], seen: Sequence[str], actions: Sequence[str]) -> Course:
    """Rewards alone, over the blocks that a world's own tracker wrote: `told`, one more than there are actions."""
    course, counts = Course(), Counter[str]()
    try:
        for turn, action in enumerate(actions, start=1):
            before, saw = {**told[turn - 1], COUNTS: dict(counts)}, seen[min(turn, len(seen) - 1)]
            events = fence.call("events", state=before, action=action, saw=saw, after=told[turn])
            course.events.append(events)
            counts.update(events)
    except DraftFailed as error:
        course.broke = str(error)
    return course


@dataclass(frozen=True)
class Draft:
    """What is examined: texts that stand below each other, and the blocks they are for where those are a world's own."""

    sources: Sequence[str]
    limits: Limits | None = None
    blocks: Mapping[Recording, Sequence[Fields]] | None = None
    """None: the draft writes its own"""

    def fence(self, seed: int = 0) -> Fence:
        return Fence(self.sources, self.limits, seed, kind="tracker" if self.blocks is None else "rewards")

    def follow(self, fence: Fence, episode: Recording) -> Course:
        if self.blocks is None:
            return follow(fence, episode.goal, episode.seen, episode.actions)
        return follow_rewards(fence, self.blocks[episode], episode.seen, episode.actions)

    def follow_all(self, episodes: Sequence[Recording]) -> list[Course | None]:
        """Every episode, or None for those that were not looked at any more."""
        fence, hung = self.fence(), 0
        courses: list[Course | None] = []
        try:
            for episode in episodes:
                if hung >= MOST_HUNG:
                    courses.append(None)
                    continue
                courses.append(self.follow(fence, episode))
                if not fence.alive:
                    hung += 1
                    fence = self.fence()
        finally:
            fence.close()
        return courses


CHECKS = ("reads", "runs", "deterministic", "bounded", "done", "rewards")
OF_REWARDS = ("reads", "runs", "deterministic", "rewards")
"""of a draft that has no block of its own"""
LONG = 400
"""turns of the episode that goes on through the others"""
CLOSE = 1e-6


@dataclass(frozen=True)
class Failure:
    check: str
    what: str
    episode: int = 0
    """line of the log; 0 where it is about no episode"""
    turn: int = 0
    """counted from 1; 0 is before the first action"""

    def __str__(self) -> str:
        where = f"episode of line {self.episode}, turn {self.turn}: " if self.episode else ""
        return f"{self.check}: {where}{self.what}"


@dataclass
class Examination:
    """What came of it."""

    episodes: int = 0
    won: int = 0
    turns: int = 0
    broke: int = 0
    """episodes that it did not follow to their end"""
    longest: int = 0
    """characters of a block"""
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    held: dict[str, bool] = field(default_factory=dict)
    reached: str = "rewards"
    """the last check that could be made"""
    checks: tuple[str, ...] = CHECKS
    """those that are asked of it"""

    @property
    def passed(self) -> bool:
        return not self.failures

    def verdicts(self) -> dict[str, str]:
        """check -> `held`, `held in 8 of 9 episodes` where it broke in one, `failed 3 times`, or `not reached`"""
        times = Counter(failure.check for failure in self.failures)
        known = CHECKS[: CHECKS.index(self.reached) + 1]
        held = f"held in {self.episodes - self.broke} of {self.episodes} episodes" if self.broke else "held"
        return {
            check: f"failed {times[check]} times" if times[check] else held if check in known else "not reached"
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
            "held_by_the_kernel": self.held,
        }


def examine(draft: Draft, episodes: Sequence[Recording]) -> Examination:
    found = Examination(len(episodes), sum(e.success for e in episodes), sum(len(e.actions) for e in episodes))
    found.checks = CHECKS if draft.blocks is None else OF_REWARDS
    try:
        _examine(draft, episodes, found)
    except DraftFailed as error:  # it cannot be loaded; or could be, and then not again
        found.failures.append(Failure("runs", str(error)))
        found.reached = "runs"
    return found


def _examine(draft: Draft, episodes: Sequence[Recording], found: Examination) -> None:
    whole = draft.blocks is None
    with draft.fence() as fence:
        found.held = dict(fence.held)
        if fence.findings:
            found.failures = [Failure("reads", reason) for reason in fence.findings]
            found.reached = "reads"
            return
        terms = Terms.of(fence.constants, "tracker" if whole else "rewards")
    courses = draft.follow_all(episodes)
    for episode, course in zip(episodes, courses, strict=True):
        if course is not None and course.broke:
            turn = len(course.events) + (bool(course.blocks) if whole else 1)
            found.broke += 1
            found.failures.append(Failure("runs", course.broke, episode.line, turn))
    if left := sum(course is None for course in courses):
        found.failures.append(Failure("runs", f"given up: {left} episodes were not looked at any more"))
    if left or found.broke == found.episodes:
        found.reached = "runs"
        return
    followed = [(e, c) for e, c in zip(episodes, courses, strict=True) if c is not None]
    _compare(draft, followed, terms, found)
    for episode, course in followed:
        _check_rewards(episode, course, terms, found)
        if whole:
            _check_blocks(episode, course, terms, found)
            _check_done(episode, course, found)
    if whole:
        _go_on(draft, episodes, terms, found)
    _remark(draft, followed, found)


def _compare(draft: Draft, followed: Sequence[tuple[Recording, Course]], terms: Terms, found: Examination) -> None:
    """Once more, backwards, where sets have another order: only what was done before may matter."""
    sound = [(e, c) for e, c in followed if not c.broke][::-1]
    try:
        with draft.fence(seed=1) as fence:
            if Terms.of(fence.constants, "tracker" if draft.blocks is None else "rewards") != terms:
                found.failures.append(Failure("deterministic", "another BOUND, REWARDS or CLAIMS the second time"))
            for episode, before in sound:
                if not fence.alive:
                    return
                if (turn := _parting(before, draft.follow(fence, episode))) is not None:
                    what = "another block, `done` or reward the second time"
                    found.failures.append(Failure("deterministic", what, episode.line, turn))
    except DraftFailed as error:
        found.failures.append(Failure("deterministic", f"it could be loaded, and the second time it cannot: {error}"))


def _parting(before: Course, again: Course) -> int | None:
    """The first turn at which two courses of one episode are not the same."""
    pairs = zip(zip(before.blocks, before.done, strict=True), zip(again.blocks, again.done, strict=True), strict=False)
    turn = next((t for t, (one, other) in enumerate(pairs) if one != other), None)
    if turn is None and before.events != again.events:
        both = enumerate(zip(before.events, again.events, strict=False), 1)
        turn = next((t for t, (one, other) in both if one != other), len(again.events))
    return turn


def _check_blocks(episode: Recording, course: Course, terms: Terms, found: Examination) -> None:
    for turn, block in enumerate(course.blocks):
        found.longest = max(found.longest, len(block))
        if len(block) > terms.bound:
            what = f"a block of {len(block)} characters, over the BOUND of {terms.bound}"
            found.failures.append(Failure("bounded", what, episode.line, turn))
            return


def _check_done(episode: Recording, course: Course, found: Examination) -> None:
    last = len(episode.actions)
    early = next((turn for turn, done in enumerate(course.done) if done and turn < last), None)
    if early is not None:
        found.failures.append(Failure("done", "done, and it was not won yet", episode.line, early))
    if course.broke or len(episode.seen) <= last:
        return  # what came of the last action is not on record
    if course.done[last] != episode.success:
        what = "won, and not done" if episode.success else "done, and it was not won"
        found.failures.append(Failure("done", what, episode.line, last))


def _check_rewards(episode: Recording, course: Course, terms: Terms, found: Examination) -> None:
    for turn, events in enumerate(course.events, start=1):
        if stranger := terms.unknown(tuple(events)):
            found.failures.append(Failure("rewards", f"{stranger!r} is no rule of REWARDS", episode.line, turn))
            return
    if course.broke:
        return
    ended = len(episode.seen) > len(episode.actions)
    times = Counter(event for events in course.events for event in events)
    for rule, claim in terms.claims.items():
        total = times[rule] * terms.progress[rule]
        if total > claim + CLOSE or (episode.success and ended and total < claim - CLOSE):
            kind = "won" if episode.success else "lost"
            what = f"{rule} adds up to {total:g} in a {kind} episode, and the claim is {claim:g}"
            found.failures.append(Failure("rewards", what, episode.line, len(course.events)))


def _go_on(draft: Draft, episodes: Sequence[Recording], terms: Terms, found: Examination) -> None:
    """One episode that goes on through the turns of all others: a block that grows with what was met is found out."""
    if not episodes:
        return
    turns = [(a, s) for e in episodes for a, s in zip(e.actions, (*e.seen[1:], e.seen[-1]), strict=False)][:LONG]
    with draft.fence() as fence:
        course = follow(fence, episodes[0].goal, [episodes[0].seen[0], *(s for _, s in turns)], [a for a, _ in turns])
    long = next((turn for turn, block in enumerate(course.blocks) if len(block) > terms.bound), None)
    where = f"turn {len(course.events) + 1} of an episode that goes on through the turns of the others"
    if course.broke:
        found.failures.append(Failure("bounded", f"{where}: {course.broke}"))
    elif long is not None:
        what = f"turn {long} of an episode that goes on through the turns of the others: {len(course.blocks[long])} characters"
        found.failures.append(Failure("bounded", f"{what}, over the BOUND of {terms.bound}"))


def _remark(draft: Draft, followed: Sequence[tuple[Recording, Course]], found: Examination) -> None:
    """What the episodes cannot show."""
    open_ended = sum(len(e.seen) <= len(e.actions) for e, _ in followed)
    if open_ended:
        found.notes.append(
            f"{open_ended} episodes do not say what came of their last action: {_ends(draft)} not checked at their end"
        )
    if found.won == found.episodes:
        found.notes.append(f"no lost episode among them: {_ends(draft)} not held against one that ends without being won")
    if not found.won:
        found.notes.append("no won episode among them: `done` and the claims are hardly checked")
    if draft.blocks is not None:
        return
    won = [e for e, c in followed if e.success and c.done and c.done[-1]]
    others = [(e, next((o.goal for o in won if o.goal != e.goal), "")) for e in won]
    asked = [(e, goal) for e, goal in others if goal]
    if asked:
        with draft.fence() as fence:
            still = sum(_ends_done(follow(fence, goal, e.seen, e.actions)) for e, goal in asked)
        if still == len(asked):
            found.notes.append(
                f"`done` does not depend on the goal: all {still} won episodes are also done when told with another's goal"
            )


def _ends(draft: Draft) -> str:
    return "`done` is" if draft.blocks is None else "the claims are"


def _ends_done(course: Course) -> bool:
    return bool(course.done and course.done[-1] and not course.broke)
