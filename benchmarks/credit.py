"""Cost of step-level credit: clustering an iteration of the paper's size, and reading hidden states from the prefill.

    python benchmarks/credit.py            # about a minute on one core
    python benchmarks/credit.py --json

Grouping: 128 trajectories × 50 steps (16 groups of 8), 3,584-dimensional features, one array per step as the sampler returns
them; greedy clustering, action keys and the Q form. BiPACE reports 490 ms.
Features: a BiPACE iteration (rollout, credit, update) with a tiny policy in Countdown, and its sampling with and without hidden
states, alternating; for comparison, a separate forward pass for the states (BiPACE reports 11.3% of an iteration).
Times are CPU seconds of this process on one thread. Features take the minimum, since the differences are below the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tacit.core.credit import Rewards
from tacit.core.types import Completion, Group, Observation, Prompt, Step, StopReason, Task, Trajectory
from tacit.credit.partitions import ActorHidden, Clusters
from tacit.credit.step_relative import ActionPeers

GROUPS, MEMBERS, STEPS, WIDTH = 16, 8, 50, 3584
PAPER_MS, PAPER_SHARE = 490.0, 0.113
LIMIT_MS, LIMIT_SHARE = 150.0, 0.01


def make_iteration(kinds: int, seed: int = 0) -> tuple[list[Group], list[Rewards]]:
    """Groups whose steps visit `kinds` states with Zipf frequencies, with ten actions and 50% success."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(GROUPS):
        task = Task("toy", f"toy/{g}", "only", "train", g, "do it")
        centers = rng.normal(size=(kinds, WIDTH)).astype(np.float32)
        popularity = 1.0 / np.arange(1, kinds + 1)
        members = []
        for _ in range(MEMBERS):
            steps = []
            for state in rng.choice(kinds, size=STEPS, p=popularity / popularity.sum()):
                hidden = centers[state] + 0.3 * rng.normal(size=WIDTH).astype(np.float32)
                tokens = rng.integers(0, 1000, size=12)
                completion = Completion(tokens, np.zeros(12, np.float32), "act", "stop", hidden)
                action = f"go to place {rng.integers(10)}"
                steps.append(Step(Observation(f"state {state}"), Prompt("", ""), tokens, completion, action, True))
            won = bool(rng.random() < 0.5)
            stop = StopReason.SUCCESS if won else StopReason.STEP_LIMIT
            members.append(Trajectory(task, tuple(steps), won, float(won), stop, Observation("")))
        groups.append(Group(task, tuple(members)))
    outcomes = [10.0 * np.array([t.success for t in group.trajectories]) for group in groups]
    return groups, [Rewards.at_the_end(group, values) for group, values in zip(groups, outcomes, strict=True)]


def measure_grouping(kinds: int, repeats: int) -> dict[str, Any]:
    groups, rewards = make_iteration(kinds)
    term = ActionPeers(Clusters(ActorHidden(), 0.10))
    done = term(groups, rewards, None)
    times = [timed(lambda: term(groups, rewards, None)) for _ in range(repeats)]
    return {
        "states_per_group": kinds,
        "clusters": done.metrics["parts"],
        "steps": sum(len(g.steps) for g in groups),
        "cpu_ms": 1e3 * statistics.median(t[0] for t in times),
        "best_cpu_ms": 1e3 * min(t[0] for t in times),
        "wall_ms": 1e3 * statistics.median(t[1] for t in times),
    }


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """(CPU seconds of this process, wall seconds)"""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return time.process_time() - cpu, time.perf_counter() - wall


def measure_features(model: str, repeats: int) -> dict[str, Any]:
    """Only sampling differs, so one turn is sampled with and without states, alternating. Shares are of a whole iteration."""
    from tacit.core.method import Schedule
    from tacit.core.protocols import Request, Sampling
    from tacit.engines.local.policy import load_policy
    from tacit.engines.local.settings import EngineSettings
    from tacit.methods.bipace import BiPACE
    from tacit.rollout.worlds import InProcessPool
    from tacit.training.loop import Collector, Loop
    from tacit.worlds import get_environment

    layer, max_tokens, turns = -2, 12, 4
    world = get_environment("countdown")
    assert world.example_texts is not None
    schedule = Schedule(groups=8, group_size=8, lr=0.0)
    method = BiPACE(layer=layer, schedule=schedule).with_prompt(wording="terse", style="bare", admissible=False).build(world)
    policy = load_policy(model, EngineSettings(device="cpu", threads=1), world_texts=world.example_texts(0))
    policy.freeze_reference()
    loop = Loop([Collector(method, world.tasks("train", 64, 0), InProcessPool(world.make), max_tokens, turns)], policy)
    steps = []
    for number in range(1, 4):
        began = time.process_time()
        done = loop.iterate(number)
        steps.append((time.process_time() - began, done.metrics["step_credit_seconds"]))
    step_s = min(seconds for seconds, _ in steps)

    played = [step for group in done.groups for trajectory in group.trajectories for step in trajectory.steps[-1:]]
    requests = [Request(step.prompt_tokens, seed) for seed, step in enumerate(played)]
    sampling = Sampling(max_tokens=max_tokens)
    seconds: dict[int | None, list[float]] = {layer: [], None: []}
    for number in range(repeats + 1):
        for state_layer in (layer, None) if number % 2 else (None, layer):
            cpu, _ = timed(lambda state_layer=state_layer: policy.sample(requests, sampling, state_layer))  # type: ignore[misc]
            if number:
                seconds[state_layer].append(cpu)
    prompts = [step.prompt_tokens for group in done.groups for step in group.steps]
    separate_pass_s = min(timed(lambda: policy.hidden_states(prompts, layer))[0] for _ in range(3))
    sampled_turns = len(prompts) / len(requests)
    return {
        "model": model,
        "turns": len(prompts),
        "step_s": step_s,
        "sampling_s": {"with": min(seconds[layer]), "without": min(seconds[None])},
        "states_share": sampled_turns * (min(seconds[layer]) - min(seconds[None])) / step_s,
        "credit_share": min(credit for _, credit in steps) / step_s,
        "own_pass_share": separate_pass_s / step_s,
        "repeats": repeats,
    }


def one_thread() -> None:
    """Restart with one thread: libraries read the thread count from the environment when they are loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    if any(os.environ.get(name) != "1" for name in names):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **dict.fromkeys(names, "1")})


def main() -> None:
    one_thread()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=9, help="timed repetitions of the grouping")
    parser.add_argument("--samplings", type=int, default=20, help="timed samplings with and without states; 0 to skip")
    parser.add_argument("--model", default="tiny", help="tiny policy for the training step")
    args = parser.parse_args()
    grouping = [measure_grouping(kinds, args.repeats) for kinds in (12, 40, 120)]
    features = measure_features(args.model, args.samplings) if args.samplings else None
    result = {
        "grouping": grouping,
        "features": features,
        "paper": {"grouping_ms": PAPER_MS, "features_share": PAPER_SHARE},
        "limits": {"grouping_ms": LIMIT_MS, "features_share": LIMIT_SHARE},
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"grouping and credit of {grouping[0]['steps']} steps, {WIDTH} dimensions, one core (paper: {PAPER_MS:.0f} ms)")
    for row in grouping:
        print(f"  {row['clusters']:5.0f} clusters  median {row['cpu_ms']:6.1f} ms  best {row['best_cpu_ms']:6.1f} ms")
    if features is not None:
        print(f"a training step of {features['turns']} turns takes {features['step_s']:.2f} s ({features['model']})")
        print(f"  hidden states from the prefill   {features['states_share']:+.2%} of it")
        print(f"  clustering and credit            {features['credit_share']:+.2%}")
        print(f"  a separate pass would take       {features['own_pass_share']:+.2%} (paper: {PAPER_SHARE:.1%})")


if __name__ == "__main__":
    main()
