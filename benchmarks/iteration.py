"""Time of an iteration by phase (rollout, credit, update), compared with vLLM and transformers on the same work.

    python benchmarks/iteration.py                                              # a tiny policy, a few episodes
    python benchmarks/iteration.py --model PATH --episodes 128 --turns 28 --prompt-tokens 480 --new-tokens 8 --json
    python benchmarks/iteration.py --model PATH --vllm DIRECTORY                # vLLM from this directory
    python benchmarks/iteration.py --model PATH --grow episodes=32,128 --grow prompt-tokens=120,480

Episodes in groups of 8 run through the rollout that training uses. Their number of turns is uniform from a quarter of `--turns`
to almost twice as many (`--even`: exactly `--turns`). Prompts have about `--prompt-tokens` tokens; the first prompts of a group
are equal. Completions vary by half around `--new-tokens` and have no stop token. The worlds take no time. Credit is GRPO's, and
the update one clipped step on all turns. A warm-up iteration with a quarter of the turns is not timed.

Peers do the same turns. vLLM samples as many tokens for the same prompts, with log-probabilities, without synchronizing
episodes. The plain transformers step pads rows into batches and computes all logits, with as many rows at once as fit. A peer
that is missing or runs out of memory is reported; the others continue.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train_step import LR, PackedStep, PlainStep, plain_model, synchronize, world_texts
from vllm_peer import beside_vllm, work_of

from tacit.core.actions import BARE
from tacit.core.credit import Batch
from tacit.core.method import Context, PromptReader
from tacit.core.protocols import PolicyHooks, Request, Sampling, Scheduler
from tacit.core.seeds import derive
from tacit.core.types import ActionStyle, Completion, Condition, Group, HiddenState, Observation, Prompt, Task, Transition
from tacit.credit.episode import EpisodeRelative
from tacit.engines.local.memory import free_memory
from tacit.engines.local.policy import LocalPolicy, load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.local.slots import cache_stop_conditions
from tacit.engines.models.tiny import TINY_SIZES, tiny_checkpoint
from tacit.losses.surrogates import ClippedSurrogate
from tacit.rewards.outcome import Outcome
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool

GROUP = 8
SENTENCE = "you open the drawer and look for a clean mug on shelf 2 then go to fridge 1 take apple from table put it in sink"
WORDS = SENTENCE.split()


@dataclass(frozen=True)
class Shape:
    """Size of an iteration; turns and tokens are means."""

    episodes: int
    turns: int
    prompt_tokens: int
    new_tokens: int
    even: bool = False
    """all episodes have exactly `turns` turns"""


class Turns:
    """A world that counts turns. The task's seed encodes the number of turns (seed // 2) and success (seed % 2)."""

    def reset(self, task: Task) -> Observation:
        self._turn, self._last, self._success = 0, task.seed // 2, bool(task.seed % 2)
        return Observation("0")

    def step(self, action: str) -> Transition:
        self._turn += 1
        over = self._turn >= self._last
        return Transition(Observation(str(self._turn)), done=over, success=over and self._success)

    def close(self) -> None:
        pass


class Pages(Context, PromptReader):
    """A context with random prompts of about `words` words, seeded by (group, member, turn). A group starts alike."""

    style: ActionStyle = "bare"
    format = BARE

    def __init__(self, words: int, task_id: str = "") -> None:
        self.words, self._task_id = words, task_id

    def begin(self, task: Task, condition: Condition) -> Pages:
        return Pages(self.words, task.id)

    def read(self, observation: Observation) -> Prompt:
        group, member = self._task_id.split()
        return Prompt(task=group, now=page(self.words, int(group), int(member), int(observation.text)))

    def record(self, action: str, transition: Transition, raw_text: str | None = None) -> Mapping[str, float]:
        return {}


@cache
def page(words: int, group: int, member: int, turn: int) -> str:
    """A prompt of random words. Cached, so that drawing words is not timed."""
    rng = np.random.default_rng((group, member if turn else 0, turn))
    count = rng.integers(3 * words // 4, 5 * words // 4 + 1)
    return " ".join(rng.choice(WORDS, count))


class Limited(PolicyHooks):
    """A policy whose completion lengths are derived from the request's seed."""

    def __init__(self, policy: LocalPolicy, mean: int) -> None:
        self._policy, self._mean = policy, mean
        no_end = cache_stop_conditions(policy.engine.tokenizer, (), policy.engine.model.vocabulary)
        policy.engine.get_sampler().stop_conditions = no_end
        self.context_limit, self.encode_prompt = policy.context_limit, policy.encode_prompt
        self.encode_completion, self.decode = policy.encode_completion, policy.decode
        self.encode_prompts = policy.encode_prompts

    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        return self._policy.sample([self.limited(r) for r in requests], replace(sampling, stop=()), hidden)

    def open_scheduler(self, sampling: Sampling, hidden: HiddenState | None = None) -> Scheduler:
        return LimitedScheduler(self, self._policy.open_scheduler(replace(sampling, stop=()), hidden))

    def limited(self, request: Request) -> Request:
        least = max(1, self._mean // 2)
        return replace(request, max_tokens=least + request.seed % (2 * (self._mean - least) + 1))


class LimitedScheduler:
    def __init__(self, policy: Limited, scheduler: Scheduler) -> None:
        self._policy, self._scheduler = policy, scheduler
        self.wait, self.close = scheduler.wait, scheduler.close

    def submit(self, request: Request) -> int:
        return self._scheduler.submit(self._policy.limited(request))


def words_for(policy: LocalPolicy, tokens: int) -> int:
    """Number of words whose prompt has about this many tokens."""
    least, more = (len(policy.encode_prompt(" ".join((WORDS * 20)[:n]))) for n in (40, 140))
    return max(4, round((tokens - least) / ((more - least) / 100) + 40))


def iterate(policy: LocalPolicy, shape: Shape, number: int) -> tuple[dict[str, float], list[Group], Batch, dict[str, float]]:
    """(seconds of each phase, groups, training batch, metrics of the update)"""
    rng = np.random.default_rng(0)
    shortest = shape.turns if shape.even else max(1, shape.turns // 4)
    lengths = rng.integers(shortest, 2 * shape.turns - shortest + 1, size=shape.episodes)
    tasks = [
        Task("turns", f"{i // GROUP} {i % GROUP}", "", "", int(2 * n + rng.integers(2)), "") for i, n in enumerate(lengths)
    ]
    plans = [EpisodePlan(task, seed=derive(number, i)) for i, task in enumerate(tasks)]
    context, sampling = Pages(words_for(policy, shape.prompt_tokens)), Sampling(max_tokens=2 * shape.new_tokens)
    limited = Limited(policy, shape.new_tokens)
    for i, turns in enumerate(lengths):
        for turn in range(turns):
            page(context.words, i // GROUP, i % GROUP, turn)
    marks = [time.perf_counter()]
    played = rollout(plans, context, InProcessPool(Turns), limited, sampling, 2 * shape.turns)
    synchronize()
    marks.append(time.perf_counter())
    if sum(len(episode.steps) for episode in played) < sum(lengths):
        raise SystemExit(
            f"prompts of about {shape.prompt_tokens} tokens do not fit the model's context of {policy.context_limit}"
        )
    groups = [Group(tasks[i], tuple(played[i : i + GROUP])) for i in range(0, len(played), GROUP)]
    credits = list(EpisodeRelative()(groups, Outcome()(groups)))
    batch = Batch.from_groups(groups, credits, 1.0)
    marks.append(time.perf_counter())
    metrics = policy.update(batch, [ClippedSurrogate()], LR)
    synchronize()
    marks.append(time.perf_counter())
    return dict(zip(("rollout", "credit", "update"), np.diff(marks).tolist(), strict=True)), groups, batch, metrics


def measure(policy: LocalPolicy, shape: Shape, args: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    iterate(policy, replace(shape, turns=max(1, shape.turns // 4)), 0)
    warm_up_s = time.perf_counter() - began
    rounds = [iterate(policy, shape, 1 + number) for number in range(args.repeats)]
    phases = {name: statistics.median(seconds[name] for seconds, *_ in rounds) for name in rounds[0][0]}
    _, groups, batch, metrics = rounds[-1]
    prompt = sum(len(p) for p in batch.prompts)
    result: dict[str, Any] = {
        **shape.__dict__,
        "rows": len(batch),
        "tokens_a_row": (prompt + batch.total_tokens) / len(batch),
        "warm_up_s": warm_up_s,
        "seconds": phases | {"iteration": sum(phases.values())},
        "tokens_per_s": {
            "rollout, read and written": (prompt + batch.total_tokens) / phases["rollout"],
            "update": (prompt + batch.total_tokens) / phases["update"],
        },
        "behaviour_gap": metrics.get("behaviour_gap"),
    }
    result["peers"] = beside(policy, groups, batch, args) if not args.alone else {}
    return result


def beside(policy: LocalPolicy, groups: Sequence[Group], batch: Batch, args: argparse.Namespace) -> dict[str, Any]:
    """name -> measurement of each peer on the same turns; {"failed": reason} if it does not run"""
    peers: dict[str, Any] = {}
    free_memory(policy.engine.device)
    for name, kind in (("transformers update", PlainStep), ("packed transformers update", PackedStep)):
        try:
            step, seconds = kind(plain_model(args.path, policy, kind is PackedStep), batch), []
            for _ in range(2):  # the first run finds how many rows fit, or compiles
                synchronize()
                began = time.perf_counter()
                step()
                synchronize()
                seconds.append(time.perf_counter() - began)
            peers[name] = {"seconds": seconds[-1], "rows_at_once": step.rows}
            del step
        except Exception as error:
            peers[name] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
    if policy.engine.device.type == "cuda":
        torch.cuda.empty_cache()
        played = [trajectory for group in groups for trajectory in group.trajectories]
        found = beside_vllm(args.path, {"rollout": work_of(played)}, args.vllm, repeats=1)["rollout"]
        peers["vllm rollout"] = found if "failed" in found else {**found, "seconds": statistics.median(found["seconds"])}
    else:
        peers["vllm rollout"] = {"failed": "it is measured on a GPU only"}
    return peers


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['episodes']} episodes, {result['rows']} turns of {result['tokens_a_row']:.0f} tokens "
        f"(warm-up {result['warm_up_s']:.1f} s)"
    )
    for phase, seconds in result["seconds"].items():
        print(f"  {phase:<28}{seconds:>10.3f} s")
    for phase, speed in result["tokens_per_s"].items():
        print(f"  {phase:<28}{speed:>10,.0f} tokens/s")
    print(f"  behaviour_gap               {result['behaviour_gap']:>10.5f}")
    update, rollout_s = result["seconds"]["update"], result["seconds"]["rollout"]
    ours = {"transformers update": update, "packed transformers update": update, "vllm rollout": rollout_s}
    for name, peer in result["peers"].items():
        if "failed" in peer:
            print(f"  {name:<28}does not run here: {peer['failed']}")
        else:
            print(f"  {name:<28}{peer['seconds']:>10.3f} s   {peer['seconds'] / ours[name]:.2f}×")


def shapes(args: argparse.Namespace) -> list[Shape]:
    """The shape given by the options, or one per value of each --grow."""
    first = Shape(args.episodes, args.turns, args.prompt_tokens, args.new_tokens, args.even)
    found = []
    for grown in args.grow:
        name, _, values = grown.partition("=")
        found += [replace(first, **{name.replace("-", "_"): int(value)}) for value in values.split(",")]
    return found or [first]


def parse() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="checkpoint directory, or a tiny size (default %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if gpu else "cpu")
    parser.add_argument("--threads", type=int, default=1 if not gpu else 0, help="CPU threads (default %(default)s)")
    parser.add_argument("--lora-rank", type=int, default=0, help="train adapters of this rank (default: all parameters)")
    parser.add_argument("--episodes", type=int, default=128 if gpu else 16, help="in groups of 8 (default %(default)s)")
    parser.add_argument("--turns", type=int, default=28 if gpu else 4, help="mean turns per episode (default %(default)s)")
    parser.add_argument(
        "--even", action="store_true", help="exactly --turns turns in every episode, as if all hit the step limit"
    )
    parser.add_argument("--prompt-tokens", type=int, default=480 if gpu else 80, help="mean tokens (default %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=8, help="mean tokens (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="timed iterations; the median counts (default %(default)s)")
    parser.add_argument("--grow", action="append", default=[], metavar="WHAT=A,B,…", help="measure once per value of an option")
    parser.add_argument("--vllm", metavar="DIRECTORY", help="directory of vLLM, if it is not installed")
    parser.add_argument("--alone", action="store_true", help="do not measure peers")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if args.episodes % GROUP:
        parser.error(f"--episodes {args.episodes} must be a multiple of {GROUP}, the size of a group")
    known = [name for name in Shape.__dataclass_fields__ if name != "even"]
    if wrong := [grown for grown in args.grow if grown.partition("=")[0].replace("-", "_") not in known]:
        parser.error(f"--grow {wrong[0]}: unknown option; choose from {', '.join(known)}, as in --grow episodes=32,128")
    return args


def main() -> None:
    args = parse()
    sizes = TINY_SIZES.get(args.model)
    texts = [*world_texts(), *(" ".join(np.random.default_rng(i).permutation(WORDS)) for i in range(200))]
    if sizes:  # enlarge a tiny policy's context: prompts are up to a quarter longer than their mean
        longest = max(3 * shape.prompt_tokens // 2 + 2 * shape.new_tokens for shape in shapes(args))
        sizes = replace(sizes, context=max(sizes.context, longest))
    args.path = str(tiny_checkpoint(texts, sizes, 0)) if sizes else str(Path(args.model).expanduser())
    policy = load_policy(args.path, EngineSettings(device=args.device, threads=args.threads, lora_rank=args.lora_rank))
    result: dict[str, Any] = {
        "benchmark": "iteration",
        "model": args.model,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "parameters": policy.engine.model.hf.num_parameters(),
    }
    print(f"{args.model}: {result['parameters']:,} parameters, {result['device']}")
    result["measured"] = []
    for shape in shapes(args):
        result["measured"].append(measure(policy, shape, args))
        show(result["measured"][-1])
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
