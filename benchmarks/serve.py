"""Load test of `tacit serve` over loopback: throughput with one and many sessions, correctness, memory, and recovery.

    python benchmarks/serve.py                                   # trains small modules (about a minute), then 64 sessions
    python benchmarks/serve.py --modules modules/household       # your own modules
    python benchmarks/serve.py --sessions 32 --requests 2000 --json

Each session replays one ALFWorld episode in the client, with the module for its family, until all sessions together have made
`--requests` requests. A request sends an observation and returns an action. `server_cpu_ms` is the server's CPU time per
request, which depends less on other load than wall time. The actions of every finished episode must equal those of `Agent` in
this process with the same goal and seed. Then the server is killed under load and restarted. Exits with 1 if a check fails.

The modules it trains are adapters of rank 4 on a Llama of 0.15M parameters that has imitated all families. They write actions
of about five tokens, as trained modules do. Client and server share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serving_load import WORLD, Answer, Connection, Load, Part, Server, make_parts, play_on, run_load, serving

from tacit.cli.main import main as tacit
from tacit.engines.local.settings import EngineSettings
from tacit.modules import Agent, find_modules

SIZES = shlex.split(
    "--tiny.vocab 768 --tiny.hidden 64 --tiny.layers 2 --tiny.heads 2 --tiny.kv-heads 2 --tiny.intermediate 192"
)
USUAL = shlex.split(
    "--world alfworld --method constant_context --wording terse --iterations 0 --sft.lr 4e-3 --evaluation.split unseen "
    "--evaluation.tasks 4 --no-evaluation.untrained --evaluation.temperature 0.4 --engine.device cpu --engine.threads 1"
)


def make_modules(place: Path) -> Path:
    """Train a small base on all families, and two skill modules on it."""
    base, made = place / "base", place / "modules"
    shown = ["--sft.steps", "150", "--sft.tasks", "120", "--sft.batch", "32"]
    assert tacit(["train", *USUAL, "--model", "tiny", *SIZES, *shown, "--out", str(base)]) == 0
    checkpoint = max(base.glob("checkpoints/sft-*/policy/model"))
    shown = ["--sft.steps", "20", "--sft.tasks", "12", "--sft.batch", "16", "--engine.lora-rank", "4"]
    trained = ["modules", "train", *USUAL, "--model", str(checkpoint), *shown, "--skills", "heat,pick", "--out", str(made)]
    assert tacit(trained) == 0
    return made


def alone(modules: Path, part: Part) -> list[str]:
    """The actions of the episode with `Agent` in this process."""
    agent = Agent.load(modules, engine=EngineSettings(device="cpu", threads=1))
    agent.begin(part.task.goal, part.task.family, seed=part.number)
    world, actions = WORLD.make(), []
    observation = world.reset(part.task)
    while len(actions) < part.steps:
        actions.append(agent.act(observation))
        transition = world.step(actions[-1])
        agent.observe(transition)
        observation = transition.observation
        if transition.done:
            break
    return actions


def summarize(load: Load, wall_s: float, cpu_s: float) -> dict[str, float]:
    return {
        "turns": len(load.seconds),
        "turns_per_s": len(load.seconds) / wall_s,
        "server_cpu_ms": 1000 * cpu_s / len(load.seconds),
        "p50_ms": 1000 * statistics.median(load.seconds),
        "p99_ms": 1000 * statistics.quantiles(load.seconds, n=100)[98],
    }


def under(server: Server, parts: list[Part], requests: int) -> tuple[Load, float, float]:
    """(load, wall seconds, CPU seconds of the server)"""
    before = server.cpu()
    load, wall_s = asyncio.run(run_load(server.port, parts, requests))
    return load, wall_s, server.cpu() - before


def measure(server: Server, parts: list[Part], requests: int) -> dict[str, Any]:
    few = parts[: min(32, len(parts))]
    under(server, few, min(requests, 600))  # warm-up with the same number of sessions
    one = summarize(*under(server, parts[:1], min(requests, 400)))
    many = summarize(*under(server, few, min(requests, 3000)))
    before = server.memory()
    load, wall_s, cpu_s = under(server, parts, requests // 2)
    halfway = server.memory()
    rest, more_s, more_cpu_s = under(server, parts, requests - requests // 2)
    load.seconds += rest.seconds
    load.episodes += rest.episodes
    return {
        "one at a time": one,
        f"{len(few)} at once": many,
        "gain": many["turns_per_s"] / one["turns_per_s"],
        f"{len(parts)} at once, for long": summarize(load, wall_s + more_s, cpu_s + more_cpu_s),
        "memory_mb": [round(size / 1e6, 1) for size in (before, halfway, server.memory())],
        "episodes": load.episodes,
    }


def check(modules: Path, parts: list[Part], episodes: list[tuple[int, list[str]]]) -> dict[str, int]:
    """Number of episodes whose actions differ from a run without a server."""
    expected: dict[int, list[str]] = {}
    for number in sorted({number for number, _ in episodes}):
        expected[number] = alone(modules, parts[number])
    differ = sum(actions != expected[number] for number, actions in episodes)
    return {"episodes": len(episodes), "distinct": len(expected), "differ": differ}


def count_noticed(ends: Sequence[BaseException | None]) -> int:
    """Number of sessions that ended with a connection error, as they should after a kill."""
    return sum(isinstance(end, OSError | EOFError) for end in ends)


async def interrupt(server: Server, modules: Path, parts: list[Part], threads: int) -> dict[str, Any]:
    """Kill the server under load. All sessions must fail at once, and a restarted server must refuse the old session."""
    before = Connection(server.port)
    session = (await before.ask("POST", "/sessions", {"goal": parts[0].task.goal, "family": parts[0].task.family}))["session"]
    loads = [asyncio.create_task(play_on(server.port, part, Load(10**6))) for part in parts]
    await asyncio.sleep(2.0)
    server.kill()
    began = time.perf_counter()
    lost = await asyncio.wait_for(asyncio.gather(*loads, return_exceptions=True), 30)
    noticed_s = time.perf_counter() - began
    again = await asyncio.to_thread(Server, modules, threads, server.port)
    try:
        await Connection(again.port).ask("POST", f"/sessions/{session}/observe", {"observation": "A room."})
        status = 200
    except Answer as error:
        status = error.status
    load, _ = await run_load(again.port, parts, 4 * len(parts))
    again.process.terminate()
    ended = await asyncio.to_thread(again.process.wait, 30)
    kinds = sorted({type(error).__name__ for error in lost})
    return {"noticed": count_noticed(lost), "as": kinds, "within_s": noticed_s, "old_session": status,
            "turns_after": len(load.seconds), "exit": ended}  # fmt: skip


def faults(found: dict[str, Any], sessions: int) -> list[str]:
    """Descriptions of all failed checks."""
    transcripts, killed = found["transcripts"], found["killed"]
    wrong = {
        f"{transcripts['differ']} of {transcripts['episodes']} episodes differ from Agent's": transcripts["differ"],
        "no episode finished, so none was compared": not transcripts["episodes"],
        f"{killed['noticed']} of {sessions} sessions noticed that the server was killed": killed["noticed"] != sessions,
        f"the restarted server answered an old session with {killed['old_session']}, not 410": killed["old_session"] != 410,
        f"on SIGTERM, the server exited with status {killed['exit']}": killed["exit"],
    }
    return [fault for fault, so in wrong.items() if so]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=Path, help="directory of ALFWorld modules (default: train small ones)")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=20, help="maximum steps per episode")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp())
    try:
        modules = options.modules or make_modules(place)
        families = sorted({family for module in find_modules(modules).values() for family in module.families})
        parts = make_parts(families, options.sessions, options.steps)
        with serving(modules, options.threads) as server:
            found = measure(server, parts, options.requests)
        found["transcripts"] = check(modules, parts, found.pop("episodes"))
        found["killed"] = asyncio.run(interrupt(Server(modules, options.threads), modules, parts, options.threads))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    found = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 3))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<16} {json.dumps(value)}")
    for fault in (wrong := faults(found, len(parts))):
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
