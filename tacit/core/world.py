"""The interface of a world: a simulator, its tasks, prompt texts, experts and tracker.

worlds/<name>/
  world.py     the simulator, and how an agent reads it               -> World, Wording
  tasks.py     task generation, splits, panel hashes; in some worlds part of world.py
  skills.py    experts and the rule agent, tracker, alphabet,         -> Expert, Tracker, Alphabet
               handbook, failure reasons, hindsight
  __init__.py  ENVIRONMENT = Environment(...)

Tables and word lists are TOML files beside them.
"""

from __future__ import annotations

import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from tacit.core.actions import FORMATS, ActionFormat, Calls, Tags
from tacit.core.errors import TacitError, describe_error, install_command, unknown
from tacit.core.types import ActionStyle, Observation, Skills, Task, Trajectory, Transition


class Wording(ABC):
    """Renders tasks, observations and turns as prompt text. Contexts decide what a prompt contains, wordings how it reads."""

    version: str = "1"  # raise it whenever the text changes; a skill module records the version it was trained with
    separator: str = "\n\n"  # between the sections of a prompt
    formats: Mapping[ActionStyle, ActionFormat] = MappingProxyType({})  # style -> format, if not the default of core/actions.py
    tool_request: str = "Answer with one call of a tool."  # replaces `request` if actions are tool calls

    @abstractmethod
    def task(self, task: Task) -> str:
        """The statement of the task."""

    @abstractmethod
    def turn(self, number: int, observation: Observation, action: str) -> str:
        """One past turn, for history; `number` counts from 1."""

    @abstractmethod
    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        """The current observation, with the admissible actions if `admissible`."""

    @abstractmethod
    def request(self, style: ActionStyle) -> str:
        """The request for an action, which names the answer format."""

    def alone(self, number: int, observation: Observation, admissible: bool) -> str:
        """`now` for a prompt without past turns, if it differs, for example because `now` mentions them; empty: use `now`."""
        return ""

    def message(self, number: int, observation: Observation, admissible: bool) -> str:
        """The current observation as one message of a conversation."""
        return self.alone(number, observation, admissible) or self.now(number, observation, admissible)


class Numbered(Wording):
    """The default wording for language models: rules, task, numbered turns. A world sets `rules` and may override `seen`."""

    rules = ""
    goal_prefix = "Your goal: "  # before the goal
    word = "action"  # noun for an action
    between = "\n"  # between a turn's number, observation and action
    listed = "; "  # between admissible actions

    def seen(self, observation: Observation) -> str:
        return observation.text

    def task(self, task: Task) -> str:
        return "\n".join(part for part in (self.rules, f"{self.goal_prefix}{task.goal}") if part)

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{self._seen(number, observation)}{self.between}You did: {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        text = self._seen(number, observation)
        if admissible and observation.actions:
            text += f"\nPossible {self.word}s: {self.listed.join(observation.actions)}"
        return text

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return f"Answer with the next {self.word} alone."
        return f"Think step by step inside <think> </think>, then give one {self.word} inside <action> </action>."

    def _seen(self, number: int, observation: Observation) -> str:
        return f"Turn {number}.{self.between}{self.seen(observation)}"


class StepCountWording(Wording):
    """The prompt template of verl-agent, used by GiGPO, BiPACE and OPID: past turns in brackets, then the number of steps taken
    and the current observation. A world defines `task`, `request`, `describe` and `list_actions`."""

    separator = "\n"
    end = ""  # text after the current observation

    def describe(self, observation: Observation) -> str:
        return observation.text

    def describe_past(self, observation: Observation) -> str:
        return self.describe(observation)

    def list_actions(self, observation: Observation) -> str:
        return ""

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"[Observation {number}: '{self.describe_past(observation)}', Action {number}: '{action}']"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        above = "; the most recent observations and the actions you took are shown above"
        return self._now(number, observation, admissible, above)

    def alone(self, number: int, observation: Observation, admissible: bool) -> str:
        return self._now(number, observation, admissible, "")

    def _now(self, number: int, observation: Observation, admissible: bool, above: str) -> str:
        steps = f"Prior to this step, you have already taken {number - 1} step(s){above}. You are now at step {number} and your"
        listed = self.list_actions(observation) if admissible and observation.actions else ""
        return f"{steps if number > 1 else 'Your'} current observation is: {self.describe(observation)}{self.end}{listed}"


class Brief(Wording):
    """The default wording for tiny policies: one line `observation > action` per turn, and no request."""

    separator = "\n"
    then = " > "  # between observation and action
    ends = ""  # end of the current line, before the agent's action
    listed = "; "  # between admissible actions
    list_start = " ["  # before the list of admissible actions

    def offered(self, observation: Observation) -> Sequence[str]:
        return observation.actions

    def brief(self, observation: Observation) -> str:
        return observation.text

    def task(self, task: Task) -> str:
        return ""

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{self.brief(observation)}{self.then}{action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        show = admissible and observation.actions
        listed = f"{self.list_start}{self.listed.join(self.offered(observation))}]" if show else ""
        return f"{self.brief(observation)}{listed}{self.ends}"

    def request(self, style: ActionStyle) -> str:
        return ""


def format_of(wording: Wording, style: ActionStyle) -> ActionFormat:
    """The action format of a wording in this style. With several kinds of tags, the tool format has one tool per kind."""
    tags = wording.formats.get("tags")
    if style == "tools" and "tools" not in wording.formats and isinstance(tags, Tags) and len(tags.kinds) > 1:
        return Calls(tags.kinds, keep_case=tags.keep_case)
    formats = {**FORMATS, **wording.formats}
    if style not in formats:
        raise unknown(f"style of the wording {type(wording).__name__}", style, formats)
    return formats[style]


def render_now(wording: Wording, number: int, observation: Observation, admissible: bool, past: bool) -> tuple[str, str]:
    """(text of the current observation, `Wording.alone`). `past`: whether the prompt shows past turns."""
    without = wording.alone(number, observation, admissible)
    return (without if without and not past else wording.now(number, observation, admissible)), without


USUAL_PANEL = 128  # default number of evaluation tasks, in worlds that generate tasks

FULL_BLOCK = "full"  # name of the form of the state block rendered by `Environment.tracker`


class World(Protocol):
    """A simulator that runs one episode at a time. It must not share mutable state with other worlds."""

    def reset(self, task: Task) -> Observation: ...

    def step(self, action: str) -> Transition: ...

    def close(self) -> None:
        """Free resources. Optional."""
        return None


@runtime_checkable
class Expert(Protocol):
    """Plays one episode; made anew for each. It sees the agent's observations and whatever its constructor was given."""

    def act(self, observation: Observation) -> str: ...


@runtime_checkable
class Adviser(Expert, Protocol):
    """An expert that can follow another agent's episode: `act` returns its own choice, `happened` takes the agent's action."""

    def happened(self, action: str) -> None: ...


class ByReading:
    """Mixin that makes an expert an `Adviser`, for experts that choose actions from observations alone."""

    def happened(self, action: str) -> None:
        pass


class Tracker(Protocol):
    """A deterministic fold over an episode's observations and actions; its state is the progress so far, in named fields."""

    @property
    def version(self) -> str: ...

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the rules behind the signals: `progress.subgoal`, `error.repeated`, …"""

    def start(self, task: Task, observation: Observation) -> Any: ...

    def update(self, state: Any, action: str, transition: Transition) -> Any: ...

    def render(self, state: Any) -> str:
        """The state block: the state as text, of bounded length for episodes of any length."""

    def signals(self, before: Any, after: Any) -> Mapping[str, float]:
        """Signals of the last update: the sums `progress` and `error`, and the amount of each rule that applied, named as in
        `components` (see tacit/core/hindsight.py)."""


@dataclass(frozen=True)
class Alphabet:
    """Atomic skills Σ of a world and the projection φ from a trajectory to a sequence of them. The kind of a skill is its name
    up to the first dash: `OP_ADD-LARGE-SMALL` is an OP_ADD."""

    skills: tuple[str, ...]
    project: Callable[[Trajectory], Iterable[str | None]]  # one skill per step, or None for a step without a skill
    operators: tuple[str, ...] = ()  # kinds whose frequencies are reported, such as arithmetic operators

    def __call__(self, trajectory: Trajectory) -> tuple[str, ...]:
        sequence = tuple(skill for skill in self.project(trajectory) if skill is not None)
        for skill in sequence:
            if skill not in self.skills:
                task = trajectory.task
                raise TacitError(
                    f"{unknown('skill', str(skill), self.skills)} The projection of world {task.world!r} returned it for an "
                    f"episode of {task.id!r}: add it to the alphabet, or return None for such steps."
                )
        return sequence


FUNCTIONS = ("make", "tasks", "reader", "failure", "hindsight", "example_texts", "questions", "family_tasks", "place", "lacks")
"""fields of an Environment that must be callable"""
FIELD_TYPES: tuple[tuple[str, type, str], ...] = (
    ("max_steps", int, "30"),
    ("splits", Sequence, '("train", "test")'),
    ("families", Sequence, '("easy", "hard")'),
    ("experts", Mapping, '{"bisect": Bisect}'),
    ("wordings", Mapping, '{"full": Rules(), "terse": Brief()}'),
)
"""(field of an Environment, its type, an example)"""


@dataclass(frozen=True)
class Environment:
    """A world with its tasks, prompt texts, experts and tracker. One per folder, found by name."""

    name: str
    summary: str
    max_steps: int
    make: Callable[[], World]  # makes a world; `Served` (core/simulator.py) if worlds share a simulator
    tasks: Callable[[str, int, int], Sequence[Task]]  # (split, count, seed) -> tasks, the same on every machine
    splits: tuple[str, ...]
    families: tuple[str, ...]  # kinds of task; every task has one
    wordings: Mapping[str, Wording]  # `full` for language models, `terse` for tiny policies
    experts: Mapping[str, Callable[[Task], Expert]] = field(default_factory=dict)  # by name; the first is the default
    alphabet: Alphabet | None = None
    tracker: Tracker | None = None  # renders the form `full` of the state block
    forms: Mapping[str, Tracker] = field(default_factory=dict)  # other forms of the state block by name
    reader: Callable[[str], str] | None = None  # rule agent: (prompt with a state block) -> action
    failure: Callable[[Trajectory], str] | None = None  # the reason of a failed trajectory, as a label
    hindsight: Callable[[Trajectory], Skills] | None = None  # rule-based hindsight skills of a finished episode
    history: int = 2  # default number of past turns in the prompt, as in the papers' code
    critical_steps: int = 5  # default maximum of critical steps per episode; OPID has 2 in search
    published_families: Mapping[str, str] = field(default_factory=dict)  # family -> its published name
    handbook: Mapping[str, str] = field(default_factory=dict)  # family -> handwritten advice; "" is for all families
    example_texts: Callable[[int], Sequence[str]] | None = None  # (seed) -> text of this world to train a tiny tokenizer on
    questions: Callable[[Random, Observation], Sequence[tuple[str, str]]] | None = None
    """(rng, observation) -> further (question, answer) pairs for pretraining, specific to this world"""
    names: re.Pattern[str] | None = None
    """matches a numbered name in its texts, for sft.renamed: group 1 is the kind, group 2 its numbers"""
    action_tokens: int = 32  # longest bare action, in tokens of any usual tokenizer
    slow: bool = False  # True where one step takes milliseconds: such a world runs in worker processes
    longest_s: float = 0.0  # of a call that ends by a limit of its own: a pool waits at least that long
    skills: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # module -> its families; empty: one each
    family_tasks: Callable[[str, int, int, tuple[str, ...]], Sequence[Task]] | None = None  # `tasks` of some families

    panel_split: str = "test"  # default evaluation split
    published: Mapping[str, int] = field(default_factory=dict)
    """split -> number of tasks, for published task lists; both the default and the maximum"""
    panels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # split -> size -> hash, to detect changed tasks
    panel_version: str = "1"  # raise it, and update the hashes, whenever the panels change
    step_rewards: bool = False  # whether its transitions carry rewards
    place: Callable[[str, Observation], str] | None = None  # (action, observation) -> the place it led to, or empty
    requires: tuple[str, ...] = ()  # required top-level modules; imported only when an episode is played
    extra: str = ""  # the extra of this package that installs them, if any
    configure: Callable[..., Environment] | None = None  # (options) -> the world, for `NAME+OPTION=VALUE`
    playable: bool = True  # False if the world has only recorded episodes, for imitation
    lacks: Callable[[], str] | None = None  # () -> missing program or file and how to get it: `Java: …`; empty if complete

    @property
    def missing(self) -> tuple[str, ...]:
        """Required modules that are not installed. Imports nothing."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)

    @property
    def remedy(self) -> str:
        """How to install what is missing: `needs nle: pip install …`; empty if nothing is."""
        missing = self.missing
        command = install_command(self.extra) if self.extra else f"`pip install {' '.join(missing)}`"
        modules = f"{', '.join(missing)}: {command}" if missing else ""
        parts = [part for part in (modules, self.lacks() if self.lacks else "") if part]
        return f"needs {', and '.join(parts)}" if parts else ""

    def check_ready(self) -> None:
        """Raise if a requirement is missing, with the command that installs it."""
        if remedy := self.remedy:
            raise TacitError(f"world {self.name!r} is not ready here: it {remedy}.")

    @property
    def skill_families(self) -> Mapping[str, tuple[str, ...]]:
        return self.skills or {family: (family,) for family in self.families}

    def tasks_of(self, split: str, count: int, seed: int, families: Sequence[str] = ()) -> Sequence[Task]:
        """`count` tasks of these families (empty: all), or as many as the split has."""
        self.check_families(families)
        count = min(count, self.published.get(split, count))
        try:
            if not families:
                selected = self.tasks(split, count, seed)
            elif self.family_tasks is not None:
                selected = self.family_tasks(split, count, seed, tuple(families))
            else:
                selected = _draw_families(self.tasks, split, count, seed, families)
            if not isinstance(selected, Iterable):
                raise TacitError(
                    f"tasks({split!r}, {count}, {seed}) of world {self.name!r} returned {selected!r}, not a list of Task."
                )
            tasks = selected if isinstance(selected, Sequence) else list(selected)
        except TacitError:
            raise
        except Exception as error:
            raise TacitError(
                f"tasks({split!r}, {count}, {seed}) of world {self.name!r} failed: {describe_error(error)}"
            ) from error
        by_id: dict[str, Task] = {}
        for task in tasks:
            if not isinstance(task, Task):
                raise TacitError(f"the tasks of world {self.name!r} must be a list of Task, but split {split!r} has {task!r}.")
            if (other := by_id.setdefault(task.id, task)) is not task and repr(other.data) != repr(task.data):
                raise TacitError(
                    f"two different tasks of world {self.name!r}, split {split!r}, have the id {task.id!r}: {other.data} and "
                    f"{task.data}. Records name a task by its id; make ids unique."
                )
        return tasks[:count]

    def panel_size(self, split: str, usual: int = USUAL_PANEL) -> int:
        """The default number of evaluation tasks of a split: its published size, or `usual` if it has none."""
        return self.published.get(split, usual)

    def check_families(self, families: Sequence[str]) -> None:
        for family in families:
            if family not in self.families:
                raise unknown(f"family of world {self.name!r}", family, self.families)

    def split_to_measure(self, named: str = "") -> str:
        """The evaluation split: the named one, or the world's default. Raises if it does not exist."""
        if not self.playable:
            raise TacitError(f"world {self.name!r} is {self.summary}: it has no simulator, so it cannot be evaluated.")
        if not named and self.panel_split not in self.splits:
            raise TacitError(
                f"world {self.name!r} has no split {self.panel_split!r} to evaluate on; choose one of "
                f"{', '.join(self.splits)} (tacit eval --split, evaluation.split in training), or set the world's panel_split."
            )
        if named and named not in self.splits:
            raise unknown(f"split of world {self.name!r}", named, self.splits)
        return named or self.panel_split

    def texts(self, seed: int) -> Sequence[str]:
        """The example texts; raises if the world returns anything but strings."""
        try:
            answer = self.example_texts(seed) if self.example_texts else []
            values = [answer] if isinstance(answer, str) else list(answer)
        except Exception as error:
            raise TacitError(
                f"example_texts({seed}) of world {self.name!r} must give a list of strings: {describe_error(error)}"
            ) from error
        if wrong := [text for text in values if not isinstance(text, str)]:
            raise TacitError(f"example_texts({seed}) of world {self.name!r} must give a list of strings, but has {wrong[0]!r}.")
        return values

    def __post_init__(self) -> None:
        for name in FUNCTIONS:
            if (function := getattr(self, name)) is not None and not callable(function):
                kind = type(function).__name__
                remedy = f"give the class, {kind}" if name == "make" else f"for a fixed value write {name}=lambda *_: value"
                raise TacitError(f"{name} of world {self.name!r} is a {kind}, not a function; {remedy}.")
        for name, expected, example in FIELD_TYPES:
            if not isinstance(value := getattr(self, name), expected) or isinstance(value, str):
                raise TacitError(f"{name} of world {self.name!r} is {value!r}; write it as in {name}={example}.")
        for name, make_expert in self.experts.items():
            if not callable(make_expert):
                kind = type(make_expert).__name__
                raise TacitError(
                    f"expert {name!r} of world {self.name!r} is a {kind}, not a function of a task; give the class, {kind}."
                )
        if self.max_steps < 1:
            raise TacitError(f"max_steps of world {self.name!r} is {self.max_steps}; an episode needs at least 1.")
        if isinstance(self.make, type):
            for name, argument in (("reset", "task"), ("step", "action")):
                if getattr(self.make, name, None) in (None, getattr(World, name)):
                    raise TacitError(f"{self.make.__name__} of world {self.name!r} has no {name}(self, {argument}); define it.")
        for name, wording in self.wordings.items():
            if isinstance(wording, type):
                raise TacitError(f"wording {name!r} of world {self.name!r} is a class; write {wording.__name__}().")
            if not isinstance(wording, Wording):
                raise TacitError(
                    f"wording {name!r} of world {self.name!r} is a {type(wording).__name__}; its class must be a subclass of "
                    "tacit.core.world.Wording (or Numbered, or Brief)."
                )

    def wording(self, name: str) -> Wording:
        if name not in self.wordings:
            small = " Small models read `terse`: give the world one, or choose with --wording." if name == "terse" else ""
            raise TacitError(f"{unknown(f'wording of world {self.name!r}', name, self.wordings)}{small}")
        return self.wordings[name]

    @property
    def trackers(self) -> Mapping[str, Tracker]:
        """Every form of the state block by name, `full` first; empty if the world has no tracker."""
        return {FULL_BLOCK: self.tracker, **self.forms} if self.tracker is not None else {}

    def tracker_of(self, form: str) -> Tracker:
        if self.tracker is None:
            raise TacitError(
                f"a state block needs a tracker, and world {self.name!r} has none. Give its Environment `tracker=…` (see "
                f"Tracker in tacit/core/world.py), or choose a method that needs none, such as grpo without --state-block."
            )
        if form not in self.trackers:
            raise unknown(f"form of the state block of world {self.name!r}", form, self.trackers)
        return self.trackers[form]

    def expert(self, name: str | None = None) -> Callable[[Task], Expert]:
        if not self.experts:
            raise TacitError(f"world {self.name!r} has no expert: give its Environment `experts`, or set sft.steps = 0.")
        if name is None:
            return next(iter(self.experts.values()))
        if name not in self.experts:
            raise unknown(f"expert of world {self.name!r}", name, self.experts)
        return self.experts[name]


MAX_DRAWN_PER_TASK = 64  # tasks drawn per requested task before giving up: a split may lack the family


def _draw_families(
    tasks: Callable[[str, int, int], Sequence[Task]], split: str, count: int, seed: int, families: Sequence[str]
) -> list[Task]:
    """Request twice as many tasks until `count` are of these families, the split has no more, or the limit is reached."""
    requested, selected = count, [t for t in tasks(split, count, seed) if t.family in families]
    while len(selected) < count and requested < MAX_DRAWN_PER_TASK * count:
        requested *= 2
        try:
            drawn = list(tasks(split, requested, seed))
        except TacitError:
            break
        selected = [t for t in drawn if t.family in families]
        if len(drawn) < requested:
            break
    return selected[:count]


# Checks of a world's return values.


def as_transition(answer: object) -> Transition:
    """The Transition that `step` returned, with Python numbers. Raises TypeError or ValueError if it is malformed."""
    if not isinstance(answer, Transition):
        raise TypeError(f"step must return a Transition(observation, done, success), but returned {_describe_type(answer)}")
    seen = as_observation(answer.observation, "the Transition that step returns must hold an Observation(text)")
    if not isinstance(answer.label, str):
        raise TypeError(f"the label of the Transition that step returns must be text, but is {answer.label!r}")
    return replace(answer.in_plain_numbers(), observation=seen)


def as_observation(answer: object, rule: str = "reset must return an Observation(text)") -> Observation:
    """The Observation that `reset` returned. Raises TypeError if it is malformed."""
    if not isinstance(answer, Observation):
        raise TypeError(f"{rule}, but returned {_describe_type(answer)}")
    if not isinstance(answer.text, str):
        raise TypeError(f"{rule}, but its text is {_describe_type(answer.text)}")
    if isinstance(answer.actions, str) or not all(isinstance(action, str) for action in answer.actions):
        raise TypeError(f"{rule}, whose actions are a tuple of texts, but they are {answer.actions!r}")
    return answer if isinstance(answer.actions, tuple) else replace(answer, actions=tuple(answer.actions))


def as_action(answer: object, observation: Observation) -> str:
    """The action that an agent's or expert's `act` returned. Raises if it is not text."""
    if not isinstance(answer, str):
        raise TacitError(
            f"act of the agent or expert must return the action as text, but returned {_describe_type(answer)} for the "
            f"observation {observation.text[:60]!r}."
        )
    return answer


def _describe_type(answer: object) -> str:
    """A description of a wrong return value, such as `a tuple of (str, dict), as Gym's worlds do`."""
    if not isinstance(answer, tuple):
        kind = type(answer).__name__
        return "nothing" if answer is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    kinds = ", ".join(type(part).__name__ for part in answer)
    return f"a tuple of ({kinds})" + (", as Gym's worlds do" if len(answer) in (2, 4, 5) else "")


def texts_of_play(
    world: World,
    tasks: Iterable[Task],
    expert: Callable[[Task], Expert],
    wordings: Sequence[Wording],
    tracker: Tracker | None = None,
    present: bool = True,
    bare: bool = False,
) -> list[str]:
    """Texts to train a tiny tokenizer on, from the expert's episodes: each task, and for each turn the current observation (if
    `present`), the past turn, the action (if `bare`) and the tracker's state block."""
    texts: list[str] = []
    for task in tasks:
        agent, observation, done, number = expert(task), world.reset(task), False, 1
        state = tracker.start(task, observation) if tracker else None
        texts += [wording.task(task) for wording in wordings]
        while not done:
            action = agent.act(observation)
            texts += [wording.now(number, observation, False) for wording in wordings if present]
            texts += [wording.turn(number, observation, action) for wording in wordings]
            texts += [action] if bare else []
            transition = world.step(action)
            if tracker:
                texts.append(tracker.render(state))
                state = tracker.update(state, action, transition)
            observation, done, number = transition.observation, transition.done, number + 1
    world.close()
    return [text for text in texts if text]
