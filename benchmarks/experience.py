"""What experience costs the rollout: the same episodes with a bank and without, in one run.

    python benchmarks/experience.py [--json] [--model tiny-base] [--groups 16] [--size 8] [--entries 20000] [--repeats 7]

none      nobody is guided: GRPO's rollout
notes     half of each group reads a note, and no bank is asked: the notes are those of `bank`, known beforehand
bank      the same episodes; a search in the bank finds each note, when the group begins
slow      the same, while an extractor that takes 50 ms for each episode distils those of an iteration in the background
asking    as `bank`, and every guided agent asks once (search_and_ask, told as it is), which is one of its turns

`bank` over `notes` is what the system costs, and `slow` over `notes` the same beside a slow extractor: they play the same
episodes, word for word (it is checked). Goal: within 3%. `notes` over `none` is what reading an entry costs, whoever found it.
The cases take turns, repeat after repeat; told are medians of wall time and of the CPU time of all threads of this process, and
the median of the ratios of one repeat. On a busy machine look at CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.companions.experience.bank import Bank, Origin
from tacit.companions.experience.companion import Experience, GuidedHalf
from tacit.companions.experience.extractor import Extractor, ExtractorSettings
from tacit.companions.experience.manager import DistillRequest, ExperienceManager, QuerySettings
from tacit.companions.experience.retrieval import NgramEmbedding
from tacit.core.method import Alike, Conditions
from tacit.core.protocols import ModelSource, PolicyHooks, Sampling
from tacit.core.types import PLAIN, Completion, Condition, Group, IterationInfo, Task
from tacit.engines import get_engine
from tacit.methods import get_method
from tacit.prompts.search_and_ask import ASK, SearchAndAsk
from tacit.rollout.episodes import rollout_groups
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

SLOW_S = 0.05
LIMIT = 0.03


@dataclass(frozen=True)
class Known(Conditions):
    """Notes that were found before."""

    told: dict[str, Sequence[Condition]]

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        return self.told[task.id]


class Slow(PolicyHooks):
    """An extractor elsewhere, which takes its time and none of this machine's."""

    context_limit = 100_000

    def encode_prompt(self, text: str) -> np.ndarray:
        return np.arange(len(text) // 4)

    def sample(self, requests, sampling, hidden=None) -> list[Completion]:
        time.sleep(SLOW_S * len(requests))
        return [Completion(np.arange(2), np.zeros(2, np.float32), "return", "stop") for _ in requests]


class AsksOnce(PolicyHooks):
    """A policy that asks at its first turn where it may, and else does what it does."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.context_limit = policy.context_limit
        self.encode_prompt, self.decode = policy.encode_prompt, policy.decode

    def sample(self, requests, sampling, hidden=None) -> list[Completion]:
        written = self._policy.sample(requests, sampling, hidden)
        return [self._asking(r, c) for r, c in zip(requests, written, strict=True)]

    def _asking(self, request, completion: Completion) -> Completion:
        read = self.decode(request.prompt)
        may, has = f"ask: {ASK}" in read, "what goes first" in read
        return replace(completion, text=f"{ASK} what goes first here?") if may and not has else completion


def filled(path: Path, entries: int, goals: Sequence[str]) -> Bank:
    """As many entries as asked for, each about one of the goals."""
    embed = NgramEmbedding()
    bank = Bank(path, embed.name, embed.dimensions)
    texts = [f"{goals[i % len(goals)]}: look at number {i} first, then at the others" for i in range(entries)]
    bank.replace((), [(t, v, Origin(), None) for t, v in zip(texts, embed(texts), strict=True)], "")
    return bank


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("groups", 16), ("size", 8), ("entries", 20_000), ("repeats", 7), ("turns", 6)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default:,}")
    parser.add_argument("--model", default="tiny-base", help="default: tiny-base")
    parser.add_argument("--world", default="countdown", help="default: countdown")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()

    engine = get_engine("local")
    policy = engine.load(ModelSource(args.model, 0, None, None), engine.settings(device="cpu", threads=1))
    world = get_environment(args.world)
    settings = get_method("complementary")().with_prompt(wording="terse", style="bare", admissible=False, history=0)
    context, tasks = settings.context(world), world.tasks("train", args.groups, 0)
    worlds, sampling = InProcessPool(world.make), Sampling(1.0, max_tokens=world.action_tokens)
    place = Path(tempfile.mkdtemp())
    bank = filled(place / "bank.sqlite", args.entries, [task.goal for task in tasks])

    def experience(background: bool) -> Experience:
        extractor = Extractor(Slow, ExtractorSettings(style="terse", tokens=64))  # type: ignore[arg-type]
        manager = ExperienceManager(bank, NgramEmbedding(), extractor, background=background)
        return Experience(lambda: manager, asked=QuerySettings(refined=False))

    calm, beside = experience(False), experience(True)
    asking = SearchAndAsk(context, calm.ask, ("experience",), brief=True)

    def play(conditions: Any, told: Any = context, player: Any = policy) -> list[Group]:
        return rollout_groups(
            tasks, args.size, 1, conditions, told, worlds, player, sampling, args.turns, lockstep=player is not policy
        )

    def forget() -> None:
        """What is handed out depends on what was handed out before: all repeats are to find the same."""
        for usage in bank.usage.values():
            usage.retrieved, usage.last_retrieved = 0, -(10**9)

    found = play(GuidedHalf(calm))
    known = Known({group.task.id: [t.condition for t in group.trajectories] for group in found})
    assert any(c != PLAIN for told in known.told.values() for c in told)

    def slow() -> list[Group]:
        for group in found:
            for trajectory in group.trajectories:
                beside.manager.submit(DistillRequest(trajectory, None, IterationInfo(0, 1), "benchmark"))
        return play(GuidedHalf(beside))

    cases = {
        "none": lambda: play(Alike()),
        "notes": lambda: play(known),
        "bank": lambda: play(GuidedHalf(calm)),
        "slow": slow,
        "asking": lambda: play(GuidedHalf(calm), asking, AsksOnce(policy)),
    }
    wall: dict[str, list[float]] = {name: [] for name in cases}
    cpu: dict[str, list[float]] = {name: [] for name in cases}
    turns: dict[str, int] = {}
    searching: list[float] = []
    for repeat in range(args.repeats + 1):
        for name, case in cases.items():
            forget()
            calm.manager.search_seconds.clear()
            began, spent = time.perf_counter(), time.process_time()
            groups = case()
            if repeat:  # the first is for warming up
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(time.process_time() - spent)
            turns[name] = sum(len(group.steps) for group in groups)
            if name in ("notes", "bank", "slow"):
                said = [[step.completion.text for step in group.steps] for group in groups]
                assert said == [[step.completion.text for step in group.steps] for group in found], f"{name}: other episodes"
            if name == "bank":
                searching.append(sum(calm.manager.search_seconds))
            if name == "slow":
                waiting = beside.manager._queue.qsize()
                beside.manager.finish()
    told = {
        name: {"wall_s": statistics.median(wall[name]), "cpu_s": statistics.median(cpu[name]), "turns": turns[name]}
        for name in cases
    }

    def over(case: str, other: str, spent: dict[str, list[float]]) -> float:
        return statistics.median(a / b - 1 for a, b in zip(spent[case], spent[other], strict=True))

    pairs = [("notes", "none"), ("bank", "notes"), ("slow", "notes")]
    ratios = {f"{a} over {b}": {"wall": over(a, b, wall), "cpu": over(a, b, cpu)} for a, b in pairs}
    load = os.getloadavg()[0]
    print(f"{args.groups} groups of {args.size}, {args.entries:,} entries, {args.model} in {args.world}, load {load:.1f}")
    for name, each in told.items():
        print(f"  {name:<7} {each['wall_s']:7.3f} s wall  {each['cpu_s']:7.3f} s CPU  {each['turns']:5} turns")
    for name, each in ratios.items():
        print(f"  {name:<16} {each['wall']:+7.1%} wall  {each['cpu']:+7.1%} CPU")
    found_ms = 1e3 * statistics.median(searching)
    print(f"  searching for all groups: {found_ms:.1f} ms; goal: bank and slow within {LIMIT:.0%} of notes")
    print(f"  episodes still waiting for the slow extractor when the last rollout was over: {waiting}")
    if args.json:
        print(json.dumps({"cases": told, "ratios": ratios, "load": load, "search_s": statistics.median(searching)}))
    beside.manager.finish()
    beside.manager.abandon()
    bank.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
