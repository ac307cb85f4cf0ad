"""Wordings: `full` for language models, the template that GiGPO, HGPO and BiPACE train with (BiPACE appendix J); `terse` for
models of about a million parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby, product
from random import Random

from tacit.core.types import ActionStyle, Observation, Task
from tacit.core.world import Brief, StepCountWording
from tacit.worlds.alfworld.house_tables import FITS, ROOMS
from tacit.worlds.alfworld.tasks import house_tasks
from tacit.worlds.alfworld.world import AlfWorld

_INTRO = re.compile(r"^-= Welcome to TextWorld, ALFRED! =-\n\n(.*)\n\nYour task is to: .*$", re.DOTALL)


class FullWording(StepCountWording):
    version = "2"
    """1 mentioned turns "shown above" even if none were shown"""

    def task(self, task: Task) -> str:
        return f"You are an expert agent operating in the ALFRED Embodied Environment. Your task is to: {task.goal}"

    def describe(self, observation: Observation) -> str:
        """Without the greeting and the task, which the prompt states itself."""
        intro = _INTRO.match(observation.text)
        return intro.group(1) if intro else observation.text

    def list_actions(self, observation: Observation) -> str:
        actions = "\n ".join(f"'{action}'" for action in _without_help(observation))
        return f"\nYour admissible actions of the current situation are: [{actions}]."

    def message(self, number: int, observation: Observation, admissible: bool) -> str:
        listed = self.list_actions(observation) if admissible and observation.actions else ""
        return self.describe(observation) + listed

    def request(self, style: ActionStyle) -> str:
        if style == "bare":
            return "Now it's your turn to take an action. Answer with one admissible action alone."
        return (
            "Now it's your turn to take an action.\n"
            "You should first reason step-by-step about the current situation. This reasoning process MUST be enclosed "
            "within <think> </think> tags.\n"
            "Once you've finished your reasoning, you should choose an admissible action for current step and present it "
            "within <action> </action> tags."
        )


class TerseWording(Brief):
    """`shelf 2: book 1, pen 3 > take pen 3 from shelf 2`, one line per turn."""

    ends, list_start = " >", "\n["

    def task(self, task: Task) -> str:
        return task.goal

    def brief(self, observation: Observation) -> str:
        return brief(observation.text)

    def offered(self, observation: Observation) -> list[str]:
        return _without_help(observation)


_BRIEF: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), short)
    for pattern, short in (
        (r"^You (?:arrive at|open the) [\w ]{1,80}\. (?=The|On)", ""),
        (r"^The ([\w ]{1,80}) is closed\.$", r"\1 closed"),
        (r"^The ([\w ]{1,80}) is open\. In it, you see (.*)\.$", r"\1 open: \2"),
        (r"^On the ([\w ]{1,80}), you see (.*)\.$", r"\1: \2"),
        (r"^You are facing the ([^.]*)\. Next to it, you see (.*)\.$", r"at \1: \2"),
        (r"^You are in the middle of a room\. Looking quickly around you, you see (.*)\.$", r"room: \1"),
        (r"^You close the ([\w ]{1,80})\.$", r"\1 closed"),
        (r"^You pick up the ([\w ]{1,80}) from the [\w ]{1,80}\.$", r"have \1"),
        (r"^You move the ([\w ]{1,80}) to the ([\w ]{1,80})\.$", r"\2: + \1"),
        (r"^You are carrying: a ([\w ]{1,80})\.$", r"have \1"),
        (r"^You are not carrying anything\.$", "have nothing"),
        (r"^You clean the ([\w ]{1,80}) using.*$", r"\1 clean"),
        (r"^You heat the ([\w ]{1,80}) using.*$", r"\1 hot"),
        (r"^You cool the ([\w ]{1,80}) using.*$", r"\1 cool"),
        (r"^You turn on the ([\w ]{1,80})\.$", r"\1 on"),
        (r"^You sliced the ([\w ]{1,80}) with.*$", r"\1 sliced"),
        (r"^Nothing happens\.$", "nothing happens"),
        (r"^Available commands:.*$", "help"),
    )
]
_ITEM = re.compile(r"(?:^|(?<=, )|(?<=: ))(?:and )?a (?=[a-z]+ \d)")


@lru_cache(maxsize=1024)  # each observation is rendered twice: as the current one, then as a past turn
def brief(text: str) -> str:
    """An observation, shortened to what an agent can act on. The first one lists receptacles as ranges:
    `room: cabinet 1-4, fridge 1`."""
    intro = _INTRO.match(text)
    text = (intro.group(1) if intro else text).partition("\n")[0]
    for pattern, short in _BRIEF:
        text = pattern.sub(short, text)
    text = _ITEM.sub("", text).replace(", and ", ", ")
    return _ranges(text) if intro else text


def _ranges(text: str) -> str:
    head, _, rest = text.partition(": ")
    parts = []
    for kind, names in groupby(rest.split(", "), key=lambda name: name.rsplit(" ", 1)[0]):
        numbers = sorted(int(name.rsplit(" ", 1)[1]) for name in names if " " in name)
        span = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else "".join(map(str, numbers))
        parts.append(f"{kind} {span}".strip())
    return f"{head}: {', '.join(parts)}"


def _without_help(observation: Observation) -> list[str]:
    return [action for action in observation.actions if action != "help"]


GAMES = 60
STEPS = 25
NAMED = 200
"""how often each kind is repeated, so that rare kinds get short tokens too"""

PUBLISHED_ONLY = (
    "bathtub", "blinds", "boots", "chair", "curtains", "floorlamp", "footstool", "laundryhamperlid", "lightswitch",
    "mirror", "painting", "papertowelroll", "plunger", "poster", "scrubbrush", "showerdoor", "showerglass", "sink",
    "stoveknob", "toaster", "window",
)  # fmt: skip
"""kinds that occur in published games but not in generated ones"""


def example_texts(seed: int) -> list[str]:
    """Text to train a tiny tokenizer: both wordings along random episodes in generated houses, and every object kind."""
    rng = Random(f"alfworld/texts/{seed}")
    texts = [text for task in house_tasks("train", GAMES, seed) for text in _random_episode_texts(rng, task)]
    kinds = {*FITS, *PUBLISHED_ONLY, *(kind for room in ROOMS.values() for kind in room.belongings)}
    return [*texts, *(f"{kind} 1: a {kind} {2 + n % 20}, some {kind} in" for kind, n in product(sorted(kinds), range(NAMED)))]


def _random_episode_texts(rng: Random, task: Task) -> Iterator[str]:
    world, wordings = AlfWorld(), (TerseWording(), FullWording())
    observation = world.reset(task)
    yield from (wording.task(task) for wording in wordings)
    yield FullWording().request("tags")
    for number in range(1, STEPS + 1):
        # A random verb, then a random command with that verb: most commands are `go to`.
        by_verb: dict[str, list[str]] = {}
        for command in observation.actions:
            by_verb.setdefault(command.partition(" ")[0], []).append(command)
        action = rng.choice(by_verb[rng.choice(sorted(by_verb))])
        for wording in wordings:
            yield wording.now(number, observation, admissible=number % 10 == 1)
            yield wording.turn(number, observation, action)
        yield action
        observation = world.step(action).observation
