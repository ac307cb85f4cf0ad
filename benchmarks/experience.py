"""Rollout overhead of the experience bank: the same episodes with and without a bank, in one run.

    python benchmarks/experience.py [--json] [--model tiny-base] [--groups 16] [--size 8] [--entries 20000] [--repeats 7]

none      no notes: GRPO's rollout
notes     half of each group reads a note; the notes are those of `bank`, recorded beforehand, without a search
bank      the same notes, found by a search in the bank when a group begins
slow      as `bank`, while an extractor that takes 50 ms per episode processes an iteration's episodes in the background
asking    as `bank`, and every guided agent also asks once (search_and_ask), which takes one of its turns

`bank` over `notes` is the overhead of the search, `slow` over `notes` the overhead with a slow extractor. All three play
identical episodes (this is checked). Goal: within 3%. `notes` over `none` is the cost of longer prompts.
Cases alternate. Reported are medians of wall time, of CPU time of all threads of this process, and of the ratios within one
repeat. On a busy machine, use CPU time.
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
class RecordedNotes(Conditions):
    """Recorded notes."""

    conditions: dict[str, Sequence[Condition]]

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        return self.conditions[task.id]


class Slow(PolicyHooks):
    """A slow extractor on another machine: it takes wall time, but no CPU time here."""

    context_limit = 100_000

    def encode_prompt(self, text: str) -> np.ndarray:
        return np.arange(len(text) // 4)

    def sample(self, requests, sampling, hidden=None) -> list[Completion]:
        time.sleep(SLOW_S * len(requests))
        return [Completion(np.arange(2), np.zeros(2, np.float32), "return", "stop") for _ in requests]


class AsksOnce(PolicyHooks):
    """A policy that asks at its first turn if the prompt allows it, and otherwise acts as before."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.context_limit = policy.context_limit
        self.encode_prompt, self.decode = policy.encode_prompt, policy.decode

    def sample(self, requests, sampling, hidden=None) -> list[Completion]:
        written = self._policy.sample(requests, sampling, hidden)
        return [self._asking(r, c) for r, c in zip(requests, written, strict=True)]

    def _asking(self, request, completion: Completion) -> Completion:
        prompt = self.decode(request.prompt)
        allowed, already_asked = f"ask: {ASK}" in prompt, "what goes first" in prompt
        return replace(completion, text=f"{ASK} what goes first here?") if allowed and not already_asked else completion


def make_bank(path: Path, entries: int, goals: Sequence[str]) -> Bank:
    """A bank with this many entries, each about one of the goals."""
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
    directory = Path(tempfile.mkdtemp())
    bank = make_bank(directory / "bank.sqlite", args.entries, [task.goal for task in tasks])

    def experience(background: bool) -> Experience:
        extractor = Extractor(Slow, ExtractorSettings(style="terse", tokens=64))  # type: ignore[arg-type]
        manager = ExperienceManager(bank, NgramEmbedding(), extractor, background=background)
        return Experience(lambda: manager, queries=QuerySettings(refined=False))

    calm, beside = experience(False), experience(True)
    asking = SearchAndAsk(context, calm.ask, ("experience",), brief=True)

    def play(conditions: Any, prompt_context: Any = context, player: Any = policy) -> list[Group]:
        return rollout_groups(
            tasks, args.size, 1, conditions, prompt_context, worlds, player, sampling, args.turns, lockstep=player is not policy
        )

    def forget() -> None:
        """Reset the usage counts, on which retrieval depends, so that all repeats find the same notes."""
        for usage in bank.usage.values():
            usage.retrieved, usage.last_retrieved = 0, -(10**9)

    found = play(GuidedHalf(calm))
    recorded = RecordedNotes({group.task.id: [t.condition for t in group.trajectories] for group in found})
    assert any(c != PLAIN for assigned in recorded.conditions.values() for c in assigned)

    def slow() -> list[Group]:
        for group in found:
            for trajectory in group.trajectories:
                beside.manager.submit(DistillRequest(trajectory, None, IterationInfo(0, 1), "benchmark"))
        return play(GuidedHalf(beside))

    cases = {
        "none": lambda: play(Alike()),
        "notes": lambda: play(recorded),
        "bank": lambda: play(GuidedHalf(calm)),
        "slow": slow,
        "asking": lambda: play(GuidedHalf(calm), asking, AsksOnce(policy)),
    }
    wall: dict[str, list[float]] = {name: [] for name in cases}
    cpu: dict[str, list[float]] = {name: [] for name in cases}
    turns: dict[str, int] = {}
    search_s: list[float] = []
    for repeat in range(args.repeats + 1):
        for name, case in cases.items():
            forget()
            calm.manager.search_seconds.clear()
            began, spent = time.perf_counter(), time.process_time()
            groups = case()
            if repeat:  # the first repeat warms up
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(time.process_time() - spent)
            turns[name] = sum(len(group.steps) for group in groups)
            if name in ("notes", "bank", "slow"):
                texts = [[step.completion.text for step in group.steps] for group in groups]
                assert texts == [[step.completion.text for step in group.steps] for group in found], f"{name}: other episodes"
            if name == "bank":
                search_s.append(sum(calm.manager.search_seconds))
            if name == "slow":
                waiting = beside.manager._queue.qsize()
                beside.manager.finish()
    medians = {
        name: {"wall_s": statistics.median(wall[name]), "cpu_s": statistics.median(cpu[name]), "turns": turns[name]}
        for name in cases
    }

    def over(case: str, other: str, spent: dict[str, list[float]]) -> float:
        return statistics.median(a / b - 1 for a, b in zip(spent[case], spent[other], strict=True))

    pairs = [("notes", "none"), ("bank", "notes"), ("slow", "notes")]
    ratios = {f"{a} over {b}": {"wall": over(a, b, wall), "cpu": over(a, b, cpu)} for a, b in pairs}
    load = os.getloadavg()[0]
    print(f"{args.groups} groups of {args.size}, {args.entries:,} entries, {args.model} in {args.world}, load {load:.1f}")
    for name, each in medians.items():
        print(f"  {name:<7} {each['wall_s']:7.3f} s wall  {each['cpu_s']:7.3f} s CPU  {each['turns']:5} turns")
    for name, each in ratios.items():
        print(f"  {name:<16} {each['wall']:+7.1%} wall  {each['cpu']:+7.1%} CPU")
    found_ms = 1e3 * statistics.median(search_s)
    print(f"  searching for all groups: {found_ms:.1f} ms; goal: bank and slow within {LIMIT:.0%} of notes")
    print(f"  episodes still waiting for the slow extractor after the last rollout: {waiting}")
    if args.json:
        print(json.dumps({"cases": medians, "ratios": ratios, "load": load, "search_s": statistics.median(search_s)}))
    beside.manager.finish()
    beside.manager.abandon()
    bank.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
