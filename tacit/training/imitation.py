"""Supervised training on demonstrations, turn by turn; and demonstrations from recorded episodes.

A file has one JSON object per line, plain or gzipped:

    {"task": ID, "goal": TEXT, "success": true, "turns": [{"saw": TEXT, "action": TEXT}, …], "saw": TEXT}

`task` or `goal` is required. `observation` may replace `saw`. The last `saw` is optional. Trajectory files of a run have this
format; logs of other agents are converted. Only won episodes are imitated.

An episode of a known task (by id, or by goal and first observation) is replayed in the world. If the replay matches the
recording, its prompts use the world's full observations; otherwise they use the recorded text. A replay that matches but does
not win counts as lost.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tacit.core.chat import OPEN_THOUGHT, split_thought
from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.progress import is_unicode, pluralize
from tacit.core.protocols import Learner, Tokenizer
from tacit.core.seeds import derive
from tacit.core.tasks import GoalClassifier, normalize_goal
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment, World
from tacit.losses.surrogates import Imitation
from tacit.rollout.replay import Interaction, ReplayMismatch, render_turns, replay_actions
from tacit.rollout.worlds import TimedExpert, TimedWorld
from tacit.training.demonstrations import Demonstrations, Sample, ask_questions, demonstrate, demonstrate_notes, make_sample
from tacit.training.settings import SupervisedSettings
from tacit.training.setup import WorldSetup

# Logs of other agents, converted to `turns`. Thoughts are dropped.
#
#     {"goal": …, "success": …, "text": "You are in a room.\nThought: hm\nAction: go east\nObservation: A hall.\n…"}
#     {"goal": …, "success": …, "messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}, …]}
#     {"id": …, "conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]}
#
# `text` is a ReAct transcript with `Observation:`, `Thought:` and `Action:` labels (numbered or not), or in ALFWorld's style
# (`> go east`, `> think: hm`). In `messages`, user and tool messages are observations. An assistant's action is in
# <action>…</action>, after `Action:`, the only argument of its tool call, or alone on its line. A message with only a thought
# is skipped, with the `OK.` that answers it. `conversations` are ETO's demonstrations (Song et al., 2024): the instruction and
# the `OK` before the task are dropped, and an episode is won unless its `reward` is below 1. Such a file may be one JSON list.

_LABEL = re.compile(r"^[ \t]*(observation|thought|action)(?:[ \t]*\d+)?[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_PROMPT_LINE = re.compile(r"^>[ \t]*((?:think|thought)(?:[ \t]*\d+)?[ \t]*:)?[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"(?:thought|think)(?:[ \t]*\d+)?[ \t]*:", re.IGNORECASE)
_SAME_LINE = re.compile(
    r"^([ \t]*(?:[Tt]hought|THOUGHT|[Tt]hink)(?:[ \t]*\d+)?[ \t]*:.*)[ \t](?=(?:Action|ACTION)(?:[ \t]*\d+)?[ \t]*:)",
    re.MULTILINE,
)
"""a thought with its action on the same line; the label must be capitalized"""
_PROMPT_SIGN = re.compile(r"^[ \t]*>[ \t]*", re.MULTILINE)
_TAGS = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_TASK = re.compile(r"(?:your task is to:[ \t]*|(?=your task is to ))(.+)", re.IGNORECASE)
"""ALFWorld's goal is the text after the colon; ScienceWorld's is the whole sentence"""
ACKNOWLEDGED = ("OK.", "OK")
"""answer to a thought in ALFWorld transcripts"""

Part = tuple[str, str]
"""(kind, text); kind is `observation`, `thought` or `action`"""


def convert_to_turns(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The line's data with `turns`, if its format is known, else unchanged. Observations before an action are joined; thoughts
    are dropped."""
    if "turns" in data:
        return data
    if isinstance(data.get("conversations"), list):
        data = _convert_eto(data)
    if isinstance(data.get("messages"), list):
        parts = list(_split_messages(data["messages"]))
    elif isinstance(data.get("text"), str):
        parts = list(_split_transcript(data["text"]))
    else:
        return data
    turns, seen = list[dict[str, str]](), list[str]()
    for kind, text in parts:
        if kind == "observation":
            seen.append(text)
        elif kind == "action":
            if not seen:
                raise TacitError(f"there is no observation before action {len(turns) + 1}")
            turns.append({"saw": "\n".join(seen), "action": text})
            seen = []
    goals = (match[1] for kind, text in parts if kind == "observation" and (match := _TASK.search(text)))
    goal, last = data.get("goal") or next(goals, ""), "\n".join(seen)
    return {**data, "goal": goal.strip() if isinstance(goal, str) else "", "turns": turns, **({"saw": last} if last else {})}


def _convert_eto(data: Mapping[str, Any]) -> dict[str, Any]:
    """An ETO record with `messages` and `success`."""
    roles = {"human": "user", "gpt": "assistant", "system": "system"}
    messages = [
        {"role": roles.get(str(each.get("from"))), "content": each.get("value")} if isinstance(each, Mapping) else each
        for each in data["conversations"]
    ]
    first = [message.get("content") for message in messages[:2] if isinstance(message, Mapping)]
    if len(first) == 2 and isinstance(first[1], str) and first[1].strip().rstrip(".").upper() == "OK":
        messages = messages[2:]
    reward = data.get("reward")
    won = not isinstance(reward, int | float) or reward >= 1
    return {"success": won, **{name: value for name, value in data.items() if name != "conversations"}, "messages": messages}


def _split_transcript(text: str) -> Iterator[Part]:
    text = _SAME_LINE.sub(r"\1\n", text)
    labels = list(_LABEL.finditer(text))
    if any(label[1].lower() == "action" for label in labels):
        if before := text[: labels[0].start()].strip():
            yield "observation", before
        for label, following in zip(labels, [*labels[1:], None], strict=True):
            words = text[label.end() : following.start() if following else len(text)].strip()
            kind = label[1].lower()
            yield kind, words.split("\n")[0].strip() if kind == "action" else words
        return
    at, thought = 0, False
    for line in _PROMPT_LINE.finditer(text):
        seen = text[at : line.start()].strip()
        if seen and not (thought and seen in ACKNOWLEDGED):
            yield "observation", seen
        thought, at = line[1] is not None, line.end()
        yield "thought" if thought else "action", line[2].strip()
    if seen := text[at:].strip():
        yield "observation", seen


def _split_messages(messages: list[Any]) -> Iterator[Part]:
    thought = False
    for number, message in enumerate(messages, start=1):
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if role else None
        if role in ("user", "tool") and isinstance(content, str):
            seen = re.sub(r"^\s*observation(?:\s*\d+)?\s*:\s*", "", content, flags=re.IGNORECASE).strip()
            if not (thought and seen in ACKNOWLEDGED):
                yield "observation", seen
            thought = False
        elif role == "assistant":
            kind, text = _parse_assistant(message, number)
            thought = kind == "thought"
            yield kind, text
        elif role != "system":
            raise TacitError(f"message {number} has no role (system, user, assistant, tool), or no text")


def _parse_assistant(message: Mapping[str, Any], number: int) -> Part:
    if message.get("tool_calls"):
        try:
            (call,) = message["tool_calls"]
            arguments = call["function"]["arguments"]
            (action,) = (json.loads(arguments) if isinstance(arguments, str) else arguments).values()
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise TacitError(f"message {number} does not call one tool with one argument") from error
        if not isinstance(action, str):
            raise TacitError(f"message {number} calls a tool with {type(action).__name__}, not with text")
        return "action", action
    content = message.get("content")
    answer = split_thought(content)[1] if isinstance(content, str) else ""
    if tags := _TAGS.findall(answer):
        return "action", tags[-1].strip()
    plain = _SAME_LINE.sub(r"\1\n", _PROMPT_SIGN.sub("", answer))
    if labels := [label for label in _LABEL.finditer(plain) if label[1].lower() == "action"]:
        return "action", plain[labels[-1].end() :].strip().split("\n")[0].strip()
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    candidates = [_PROMPT_SIGN.sub("", line) for line in lines if line.startswith(">")] or lines
    actions = [line for line in candidates if not _THOUGHT.match(line)]
    if candidates and not actions:
        return "thought", "\n".join(candidates)
    if len(actions) != 1 or (candidates is lines and len(lines) != 1) or OPEN_THOUGHT in actions[0]:
        raise TacitError(f"message {number} has no action: no <action>…</action>, no `Action:`, and more than one line")
    return "action", actions[0]


MAX_LISTED = 5
"""maximum lines listed in a message; the others are counted"""
LONGEST_LINE = 16_000_000
"""maximum bytes of a line"""
MAX_TURNS = 10_000
ReplayResult = Literal["won", "unknown", "lost"] | ReplayMismatch
"""result of replaying an episode marked as won: `won` or `lost` if the replay matches, `unknown` (task), or the mismatch"""


@dataclass(frozen=True)
class Recording:
    line: int
    task: str
    goal: str
    family: str
    success: bool
    seen: tuple[str, ...]
    """observation before each action, and the last one if known"""
    actions: tuple[str, ...]
    parsed: tuple[bool, ...]
    """whether the turn's completion parsed; other turns are in the history but are not imitated"""
    wrote: tuple[str | None, ...] = ()
    """per turn, the text of a completion that did not parse, else None"""

    def as_recorded(self) -> Iterator[Interaction]:
        """The episode as recorded. Its actions count as accepted, since the file does not say."""
        for turn, action in enumerate(self.actions, start=1):
            last = turn == len(self.actions)
            # A missing last observation is replaced by the one before, since a tracker needs a text to parse.
            seen, then = self.seen[turn - 1], self.seen[min(turn, len(self.seen) - 1)]
            answer = Transition(Observation(then), done=last, success=last and self.success)
            yield Interaction(Observation(seen), action, answer, self.wrote[turn - 1] if self.wrote else None)


@dataclass
class ReadReport:
    """Counts of the lines of a file by outcome; lists with line numbers and reasons."""

    unusable: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    replayed: int = 0
    """episodes whose replay matched and won"""
    unknown: int = 0
    """episodes of unknown tasks, used as recorded"""
    lost: int = 0
    replay_lost: list[str] = field(default_factory=list)
    """episodes marked as won whose replay lost"""
    other_families: int = 0
    """skipped episodes"""

    def notes(self) -> list[str]:
        lines = []
        if self.unusable:
            lines.append(f"{pluralize(len(self.unusable), 'line')} cannot be used: {_first_few(self.unusable)}")
        if self.mismatched:
            count = pluralize(len(self.mismatched), "episode")
            lines.append(f"used as recorded, since their replay differs: {count}, {_first_few(self.mismatched)}")
        lines.append(
            f"{pluralize(self.replayed, 'episode')} replayed as recorded, {self.unknown} are of tasks unknown to this run, "
            f"{self.lost} were lost and are not imitated"
        )
        if self.replay_lost:
            named = _first_few(self.replay_lost)
            lines.append(f"{len(self.replay_lost)} of the lost ones are marked as won, but their replay loses: {named}")
        if self.other_families:
            lines.append(f"skipped, since they are of other families: {pluralize(self.other_families, 'episode')}")
        return lines


def imitate_recordings(
    path: Path,
    world: Environment,
    tasks: Sequence[Task],
    context: Context,
    tokenizer: Tokenizer,
    most: int,
    families: Sequence[str] = (),
) -> tuple[Demonstrations, list[str]]:
    """(samples of the won episodes among the first `most`, notes). With `families`, other families are skipped."""
    report, won = ReadReport(), 0
    recordings = list(read_recordings(path, report))[:most]
    replayer = TaskReplayer(world, tasks)
    samples: list[Sample | None] = []
    for recording in recordings:
        if not recording.success:
            report.lost += 1
            continue
        if families and (replayer.family_of(recording) or families[0]) not in families:
            report.other_families += 1
            continue
        try:
            task, interactions, result = replayer.replay(recording)
            turns = list(render_turns(context, task, interactions))
        except Exception as error:  # trackers and wordings may fail on texts that the world never wrote
            report.unusable.append(f"line {recording.line}: {type(error).__name__}: {error}")
            continue
        if result == "lost":
            report.lost += 1
            report.replay_lost.append(f"line {recording.line}")
            continue
        if result == "won":
            report.replayed += 1
        elif result == "unknown":
            report.unknown += 1
        else:
            report.mismatched.append(f"line {recording.line}, turn {result.turn}")
        won += 1
        samples += [make_sample(turn, context, tokenizer) for turn, own in zip(turns, recording.parsed, strict=False) if own]
    replayer.close()
    demonstrations = Demonstrations.of(samples, len(recordings), won)
    if not len(demonstrations):
        raise TacitError(
            f"there is nothing to imitate in {path}: {len(recordings)} episodes, with {len(samples)} turns in won ones, none "
            f"usable. {'. '.join(report.notes())}."
        )
    return demonstrations, report.notes()


def read_recordings(path: Path, report: ReadReport) -> Iterator[Recording]:
    """The episodes of a file. Unusable lines are counted in `report`. In a JSON list, entries count as lines."""
    for number, data in _read_documents(path.expanduser(), report):
        try:
            yield parse_recording(number, json.loads(data.decode("utf-8")) if isinstance(data, bytes) else data)
        except (ValueError, TacitError, RecursionError) as error:
            report.unusable.append(f"line {number}: {_reason(error)}")


def check_recordings(path: Path) -> None:
    """Raise unless the file has an episode. Reads up to the first one."""
    report = ReadReport()
    if next(read_recordings(path, report), None) is None:
        why = report.unusable[0] if report.unusable else "it is empty"
        raise TacitError(f"there is no recorded episode in {path} ({why}); give JSON lines or a JSON list of episodes.")


def _read_documents(path: Path, report: ReadReport) -> Iterator[tuple[int, Any]]:
    """(number, line), or (number, entry) if the file is a JSON list. A truncated file of lines is read up to the damage."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(64).removeprefix(codecs.BOM_UTF8)
            file.seek(0)
            if start.lstrip().startswith(b"["):
                try:
                    entries = json.loads(file.read().decode("utf-8-sig"))
                except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
                    broken = f"a truncated or damaged JSON list: {_reason(error)}"
                    raise TacitError(f"cannot read the recorded episodes {path}: {broken}.") from error
                yield from enumerate(entries, start=1)
                return
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if len(line) > LONGEST_LINE:
                    report.unusable.append(f"line {number}: longer than {LONGEST_LINE} bytes")
                    while line and not line.endswith(b"\n"):
                        line = file.readline(LONGEST_LINE)
                elif line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        if not number:
            raise TacitError(f"cannot read the recorded episodes {path}: {error}.") from error
        report.unusable.append(f"line {number + 1}: the file is truncated or damaged here: {error}")


def _reason(error: Exception) -> str:
    reasons = {UnicodeDecodeError: "not UTF-8", RecursionError: "nested too deeply"}
    return reasons.get(type(error)) or str(error)


def parse_recording(line: int, data: Any) -> Recording:
    """Parse one line; raises TacitError with the reason if it is not an episode."""
    if not isinstance(data, Mapping):
        raise TacitError("not a JSON object")
    data = convert_to_turns(data)
    turns = data.get("turns")
    if not isinstance(turns, list) or not turns:
        raise TacitError("no turns")
    if len(turns) > MAX_TURNS:
        raise TacitError(f"{len(turns)} turns, more than {MAX_TURNS}")
    if not isinstance(data.get("success"), bool):
        raise TacitError("does not say whether it was won (success: true or false)")
    if not any(isinstance(data.get(name), str) and data[name] for name in ("task", "goal")):
        raise TacitError("names neither a task nor a goal")
    seen, actions, parsed, wrote = [], [], [], []
    for number, turn in enumerate(turns, start=1):
        saw = turn.get("saw", turn.get("observation")) if isinstance(turn, Mapping) else None
        if not isinstance(saw, str) or not isinstance(turn.get("action"), str):
            raise TacitError(f"turn {number} needs two texts, saw (or observation) and action")
        if not is_unicode(saw) or not is_unicode(turn["action"]):
            raise TacitError(f"turn {number} has half a character (a lone surrogate) in it")
        text, valid = turn.get("wrote"), turn.get("valid", True) is not False
        if not turn["action"].strip() and valid:
            raise TacitError(f"turn {number} has an empty action")
        seen.append(saw)
        actions.append(turn["action"])
        parsed.append(valid)
        wrote.append(text if not valid and isinstance(text, str) and is_unicode(text) else None)
    last = data.get("saw", data.get("observation"))
    task, goal, family = (data.get(name) or "" for name in ("task", "goal", "family"))
    if not all(is_unicode(text) for text in (last, task, goal, family) if isinstance(text, str)):
        raise TacitError("has half a character (a lone surrogate) in it")
    observations = (*seen, last) if isinstance(last, str) else tuple(seen)
    names = (str(task), str(goal), str(family))
    return Recording(line, *names, data["success"], observations, tuple(actions), tuple(parsed), tuple(wrote))


def reason_unusable(recording: Recording, replayer: TaskReplayer, context: Context) -> str:
    """Why a won episode cannot be imitated with this prompt; empty if it can."""
    try:
        task, interactions, result = replayer.replay(recording)
        list(render_turns(context, task, interactions))
    except Exception as error:  # as in `imitate_recordings`
        return f"{type(error).__name__}: {error}"
    return "is marked as won, but its replay loses" if result == "lost" else ""


class TaskReplayer:
    """A run's tasks by id and by goal, and a world to replay them in."""

    def __init__(self, world: Environment, tasks: Sequence[Task]) -> None:
        self.world = world
        self._by_id = {task.id: task for task in tasks}
        self._by_goal: dict[str, list[Task]] = {}
        for task in tasks:
            self._by_goal.setdefault(normalize_goal(task.goal), []).append(task)

    def family_of(self, recording: Recording) -> str:
        """The recorded family, else that of all known tasks with this goal, else the one predicted from the goal; or empty."""
        families = {task.family for task in self._by_goal.get(normalize_goal(recording.goal), [])}
        if recording.family or len(families) == 1:
            return recording.family or families.pop()
        try:
            return self._goals.classify(recording.goal)
        except TacitError:
            return ""

    @cached_property
    def _goals(self) -> GoalClassifier:
        return GoalClassifier((task.goal, task.family) for task in self._by_id.values())

    def replay(self, recording: Recording, needs_goal: bool = True) -> tuple[Task, list[Interaction], ReplayResult]:
        """(task, interactions, result). The interactions are the world's if the replay matches, else as recorded."""
        task = self._by_id.get(recording.task)
        if task is None and not recording.task:
            alike = self._by_goal.get(normalize_goal(recording.goal), [])
            task = next((task for task in alike if self.live.reset(task).text == recording.seen[0]), None)
        if task is None:
            if needs_goal and not recording.goal:
                raise TacitError(f"task {recording.task!r} is not a task of this run, and the line has no goal")
            task = replace(task_of_recording(recording, self.world.name), family=self.family_of(recording))
            return task, list(recording.as_recorded()), "unknown"
        try:
            interactions = list(replay_actions(self.live, task, recording.actions, recording.seen, recording.wrote))
        except ReplayMismatch as difference:
            return task, list(recording.as_recorded()), difference
        return task, interactions, "won" if interactions[-1].transition.success else "lost"

    @cached_property
    def live(self) -> World:
        return self.world.make()

    def close(self) -> None:
        if "live" in vars(self):
            self.live.close()


def task_of_recording(recording: Recording, world: str) -> Task:
    return Task(world, recording.task or f"recorded/{recording.line}", recording.family, "recorded", 0, recording.goal, {})


def _first_few(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - MAX_LISTED} more" if len(lines) > MAX_LISTED else ""
    return "; ".join(lines[:MAX_LISTED]) + more


# Supervised training: imitate demonstrations turn by turn.


def lr_factor(step: int, steps: int, warmup: float) -> float:
    """Fraction of the peak learning rate at `step` (from 0): linear warm-up, then a half cosine to zero."""
    warm = max(1, round(warmup * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def rows_of_step(samples: int, step: int, batch: int, seed: int) -> np.ndarray:
    """Row indices of a step: shuffled epochs over the data. Depends on the step alone, so a resumed run continues exactly."""
    batch = min(batch, samples)
    per_epoch = max(1, samples // batch)
    epoch, place = divmod(step, per_epoch)
    shuffled = np.random.default_rng(derive(seed, "sft", epoch)).permutation(samples)
    return shuffled[place * batch : (place + 1) * batch]


def imitate(
    learner: Learner, demonstrations: Demonstrations, settings: SupervisedSettings, seed: int, first: int = 0
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train on demonstrations from step `first`; yields (step, metrics)."""
    for step in range(first, settings.steps):
        rows = rows_of_step(len(demonstrations), step, settings.batch, seed)
        batch = Batch.imitation([demonstrations.prompts[i] for i in rows], [demonstrations.completions[i] for i in rows])
        lr = settings.lr * lr_factor(step, settings.steps, settings.warmup)
        yield step + 1, {**learner.update(batch, (Imitation(),), lr), "lr": lr}


def collect_demonstrations(
    setup: WorldSetup, tokenizer: Tokenizer, seed: int, several: bool, say: Callable[[str], None]
) -> Demonstrations:
    """Demonstrations of one world: from a file of recorded episodes, or played by the world's expert."""
    settings, world, context = setup.settings.sft, setup.world, setup.method.context
    if settings.from_:
        families = setup.settings.family_names
        demonstrations, notes = imitate_recordings(
            Path(settings.from_), world, setup.tasks.training, context, tokenizer, settings.tasks, families
        )
        for note in notes:
            say(f"imitation: {note}")
        say(f"imitation: {demonstrations}")
        return demonstrations
    tasks, limit_s = setup.tasks.training[: settings.tasks], setup.settings.world_timeout_s
    experts = {name: partial(TimedExpert, make, limit_s) for name, make in world.experts.items()}
    world = replace(world, make=partial(TimedWorld, world.make, limit_s), experts=experts)
    say(f"imitation: the expert plays {pluralize(len(tasks), 'task')}{f' of {world.name}' if several else ''}")
    longest = max(world.max_steps, setup.max_steps)
    demonstrations = demonstrate(
        world, tasks, context, tokenizer, longest, settings.expert, settings.noise, seed, settings.renamed
    )
    renamed = f", including {settings.renamed} copies of each with other names" if settings.renamed else ""
    say(f"imitation: {demonstrations}{renamed}")
    if settings.questions:
        answers = ask_questions(world, setup.tasks.training, context, tokenizer, settings.questions, seed)
        say(f"imitation: {len(answers)} answers to questions about {pluralize(settings.questions, 'episode')} of random play")
        demonstrations = Demonstrations.joined([demonstrations, answers])
    if settings.noted or settings.step_notes or settings.entries:
        more = demonstrate_notes(world, tasks, context, tokenizer, longest, settings, seed)
        say(f"imitation: {pluralize(len(more), 'sample')} of using notes and writing entries")
        demonstrations = Demonstrations.joined([demonstrations, more])
    return demonstrations
