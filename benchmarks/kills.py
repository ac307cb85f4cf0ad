"""Fault injection: kill ranks, servers and drivers of a run at random moments, and check that the run completes correctly.

    python benchmarks/kills.py                                  # 20 ranks and 20 drivers
    python benchmarks/kills.py --servers 1 --kinds server       # 20 vLLM servers
    python benchmarks/kills.py --servers 1 --kills 5            # all three, mixed

A small run on two ranks. Every few seconds a rank, a server or the driver gets SIGKILL, during start-up, rollout, update
or saving. Ranks and servers restart by themselves; a killed driver is restarted with `--resume`. Runs repeat until all kills
are used; the first run has none. The benchmark fails if

- a run completes no iteration for --limit-s (it hangs);
- a run ends without exactly its iterations, each once;
- more iterations are lost than since the last checkpoint;
- a run ends with other weights than the first (only without servers, where runs are deterministic);
- ranks or servers of a killed driver survive the run.

At most two kills happen between checkpoints: a run gives up after the fourth loss without one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

MODULES = {"rank": "tacit.engines.sharded.rank", "server": "tacit.engines.sharded.server_process"}
"""of the command lines of ranks and servers"""
CHECKPOINT_EVERY = 2
START = "--world countdown --model tiny-base --sft.steps 20 --sft.tasks 64 --sft.batch 32 --iterations 0 --engine.device cpu"
"""enough imitation for some episodes to succeed; without successes the weights do not change"""
RUN = f"""--world countdown --groups 4 --group-size 4 --lr 1e-4 --kl 0 --tasks 64 --max-steps 6
--evaluation.tasks 2 --evaluation.every 0 --no-evaluation.untrained --checkpoint-every {CHECKPOINT_EVERY}
--engine sharded --engine.ranks 2 --engine.threads 1 --engine.device cpu --engine.timeout-s 60"""
PAUSE_S = 15.0
"""maximum time between kills"""
MAX_KILLS_BETWEEN_CHECKPOINTS = 2
"""maximum kills between checkpoints"""
LEAVE_S = 90.0
"""time for orphaned processes to exit: they may first wait for --engine.timeout-s"""


class Driver:
    """A `tacit train` process; `start` uses `--resume` after a kill."""

    def __init__(self, out: Path, options: list[str]) -> None:
        self.out, self._options = out, options
        self._log = out.with_suffix(".log").open("a")
        self.orphans: list[int] = []
        """ranks and servers of drivers that were killed"""
        self.start()

    @property
    def begun(self) -> bool:
        """Whether the run can be resumed. If its ranks are killed earlier, the command exits, and nothing is lost."""
        return (self.out / "settings.json").exists()

    def start(self) -> None:
        options = ["--resume", str(self.out)] if self.begun else [*RUN.split(), *self._options, "--out", str(self.out)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tacit", "train", *options], stdout=self._log, stderr=self._log, start_new_session=True
        )

    def kill(self) -> None:
        self.orphans += [child for kind in MODULES for child in self.children(kind)]
        self.process.kill()
        self.process.wait()

    def children(self, kind: str) -> list[int]:
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and MODULES[kind] in _command(place):
                try:
                    parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                if parent == self.process.pid:
                    found.append(int(place.name))
        return found

    def done(self) -> int:
        """Number of finished iterations."""
        file = self.out / "metrics.jsonl"
        return file.read_text().count('"rl"') if file.exists() else 0

    def checkpoints(self) -> list[str]:
        return sorted(place.name for place in (self.out / "checkpoints").glob("[!.]*"))


@dataclass
class Found:
    """Statistics of all runs."""

    killed: Counter[str] = field(default_factory=Counter)
    again: int = 0
    """iterations that were repeated"""
    most_again: int = 0
    """maximum repeated iterations after one kill"""
    longest_wait_s: float = 0.0
    """longest time between iterations, restarts included"""


def imitated(out: Path) -> Path:
    """Train the imitated model that all runs start from."""
    command = [sys.executable, "-m", "tacit", "train", *START.split(), "--evaluation.tasks", "2", "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(out.glob("checkpoints/*/**/model/config.json")).parent


def kill_one(driver: Driver, kind: str, draw: random.Random) -> bool:
    """Kill a process of this kind; False if none is running yet."""
    if kind == "driver":
        driver.kill()
        driver.start()
    elif there := driver.children(kind):
        os.kill(draw.choice(there), signal.SIGKILL)
    else:
        return False
    return True


def play(driver: Driver, left: Counter[str], draw: random.Random, limit_s: float, found: Found) -> None:
    """Wait for the end of the run, and kill processes meanwhile."""
    seen, changed = 0, time.monotonic()
    kills_since_checkpoint, checkpoints, was_killed = 0, driver.checkpoints(), False
    due = time.monotonic() + draw.uniform(0.0, PAUSE_S)
    while (code := driver.process.poll()) is None or (code and not driver.begun):
        time.sleep(0.1)
        now = time.monotonic()
        if code:
            if not was_killed:
                break
            driver.start()
            was_killed, changed = False, now
        if (done := driver.done()) != seen:
            found.longest_wait_s = max(found.longest_wait_s, now - changed)
            if done < seen:
                found.again += seen - done
                found.most_again = max(found.most_again, seen - done)
            seen, changed = done, now
        if (there := driver.checkpoints()) != checkpoints:
            if kills_since_checkpoint == MAX_KILLS_BETWEEN_CHECKPOINTS:  # do not kill right after the checkpoint
                due = now + draw.uniform(0.0, PAUSE_S)
            kills_since_checkpoint, checkpoints = 0, there
        if now - changed > limit_s:
            driver.kill()
            raise SystemExit(
                f"{driver.out} hangs: no progress after iteration {seen} for {limit_s:.0f} s; killed: {dict(found.killed)}"
            )
        if now > due and kills_since_checkpoint < MAX_KILLS_BETWEEN_CHECKPOINTS and (kinds := sorted(left.elements())):
            if kill_one(driver, kind := draw.choice(kinds), draw):
                left[kind] -= 1
                found.killed[kind] += 1
                kills_since_checkpoint, was_killed = kills_since_checkpoint + 1, True
                print(f"  killed a {kind} after {seen} iterations", flush=True)
            due = time.monotonic() + draw.uniform(0.0, PAUSE_S)
    if driver.process.returncode:
        raise SystemExit(f"{driver.out} exited with status {driver.process.returncode}; see {driver.out.with_suffix('.log')}")


def check_gone(orphans: list[int]) -> None:
    deadline = time.monotonic() + LEAVE_S
    while still := [pid for pid in orphans if any(name in _command(Path("/proc", str(pid))) for name in MODULES.values())]:
        if time.monotonic() > deadline:
            raise SystemExit(f"processes {still} lost their driver and still run {LEAVE_S:.0f} s after the end of the run")
        time.sleep(0.5)


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind")
    parser.add_argument("--kinds", default="", help="comma-separated: rank, driver, server (default: all that exist)")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    place = options.out or Path(tempfile.mkdtemp(prefix="tacit-kills-"))
    place.mkdir(parents=True, exist_ok=True)
    model = imitated(place / "start")
    overrides = ["--model", str(model), "--iterations", str(options.iterations), "--engine.servers", str(options.servers)]
    kinds = options.kinds.split(",") if options.kinds else ["rank", "driver", *(["server"] if options.servers else [])]
    left, draw, found = Counter(dict.fromkeys(kinds, options.kills)), random.Random(options.seed), Found()
    digests: list[str] = []
    began = time.monotonic()
    while left.total() or not digests:
        driver = Driver(place / f"run-{len(digests)}", overrides)
        play(driver, left if digests else Counter(), draw, options.limit_s, found)
        records = list(map(json.loads, (driver.out / "metrics.jsonl").read_text().splitlines()))
        trained = [record for record in records if record["stage"] == "rl"]
        if (steps := [record["step"] for record in trained]) != list(range(1, options.iterations + 1)):
            raise SystemExit(f"{driver.out} has iterations {steps}")
        if not any(record["grad_norm"] for record in trained):
            raise SystemExit(f"{driver.out} has no gradients, so its weights cannot be compared")
        if found.most_again > CHECKPOINT_EVERY:
            raise SystemExit(f"{driver.out} lost {found.most_again} iterations with checkpoints after every {CHECKPOINT_EVERY}")
        check_gone(driver.orphans)
        digests.append(json.loads((driver.out / "summary.json").read_text())["digest"])
        if not options.servers and digests[-1] != digests[0]:
            raise SystemExit(f"{driver.out} ended with other weights than the run without kills")
        print(f"{driver.out.name} completed correctly, {time.monotonic() - began:.0f} s", flush=True)
    report = {
        "killed": dict(found.killed),
        "runs": len(digests),
        "different_weights": len(set(digests)),
        "iterations_done_again": found.again,
        "most_done_again_after_a_kill": found.most_again,
        "checkpoint_every": CHECKPOINT_EVERY,
        "longest_wait_s": round(found.longest_wait_s, 1),
        "limit_s": options.limit_s,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
