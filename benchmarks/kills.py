"""Kill what a run lives in, at random moments, and see that it ends as it should.

    python benchmarks/kills.py                                  # 20 ranks and 20 drivers
    python benchmarks/kills.py --servers 1 --kinds server       # 20 vLLM servers
    python benchmarks/kills.py --servers 1 --kills 5            # all three, mixed

A small run on two ranks; every few seconds a rank, a server or the driver itself is sent SIGKILL, whatever it does: starting,
playing, learning, saving. Ranks and servers come back by themselves; a driver is started again with `--resume`, as a person
would. Runs follow one another until all kills are spent; the first one nobody disturbs. The benchmark fails where

- a run shows no new iteration for --limit-s: it hangs;
- it ends without all its iterations, each once;
- more is lost than what was done since the last checkpoint;
- (without servers, where a run is the same bit for bit) it ends with other weights than the one that nobody disturbed;
- ranks or servers of a killed driver are still there in the end.

Kills without a checkpoint in between are no more than two: after the fourth loss without one a run gives up, as it says.
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

MODULES = {"rank": "sharded.ranks.serving", "server": "sharded.servers.serving"}
CHECKPOINT_EVERY = 2
START = "--world countdown --model tiny-base --sft.steps 20 --sft.tasks 64 --sft.batch 32 --iterations 0 --engine.device cpu"
"""enough imitation for some episodes to succeed: where nobody does no weight moves"""
RUN = f"""--world countdown --groups 4 --group-size 4 --lr 1e-4 --kl 0 --tasks 64 --max-steps 6
--evaluation.tasks 2 --evaluation.every 0 --no-evaluation.untrained --checkpoint-every {CHECKPOINT_EVERY}
--engine sharded --engine.ranks 2 --engine.threads 1 --engine.device cpu --engine.timeout-s 60"""
PAUSE_S = 15.0
"""longest from one kill to the next"""
MOST = 2
"""kills without a checkpoint in between"""
LEAVE_S = 90.0
"""how long whoever has lost his driver may take to leave: what it is in the middle of is waited for up to --engine.timeout-s"""


class Driver:
    """`tacit train`, and `--resume` whenever it has been killed."""

    def __init__(self, out: Path, options: list[str]) -> None:
        self.out, self._options = out, options
        self._log = out.with_suffix(".log").open("a")
        self.orphans: list[int] = []
        """ranks and servers of drivers that were killed"""
        self.start()

    @property
    def begun(self) -> bool:
        """Whether there is a run to come back to. A command whose ranks are killed before that ends, and nothing is lost."""
        return (self.out / "settings.json").exists()

    def start(self) -> None:
        said = ["--resume", str(self.out)] if self.begun else [*RUN.split(), *self._options, "--out", str(self.out)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tacit", "train", *said], stdout=self._log, stderr=self._log, start_new_session=True
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
        """Iterations so far."""
        file = self.out / "metrics.jsonl"
        return file.read_text().count('"rl"') if file.exists() else 0

    def checkpoints(self) -> list[str]:
        return sorted(place.name for place in (self.out / "checkpoints").glob("[!.]*"))


@dataclass
class Found:
    """What came of the kills."""

    killed: Counter[str] = field(default_factory=Counter)
    again: int = 0
    """iterations that had been done and were done again"""
    most_again: int = 0
    """after one kill"""
    longest_wait_s: float = 0.0
    """from one iteration to the next, or to where the run went on"""


def imitated(out: Path) -> Path:
    """The model that all runs begin with."""
    command = [sys.executable, "-m", "tacit", "train", *START.split(), "--evaluation.tasks", "2", "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(out.glob("checkpoints/*/**/model/config.json")).parent


def disturb(driver: Driver, kind: str, draw: random.Random) -> bool:
    """Kill one of that kind; False where none is there yet."""
    if kind == "driver":
        driver.kill()
        driver.start()
    elif there := driver.children(kind):
        os.kill(draw.choice(there), signal.SIGKILL)
    else:
        return False
    return True


def play(driver: Driver, left: Counter[str], draw: random.Random, limit_s: float, found: Found) -> None:
    """To the end of the run, with as many kills as fall into it."""
    seen, changed = 0, time.monotonic()
    since, checkpoints, fallen = 0, driver.checkpoints(), False
    due = time.monotonic() + draw.uniform(0.0, PAUSE_S)
    while (code := driver.process.poll()) is None or (code and not driver.begun):
        time.sleep(0.1)
        now = time.monotonic()
        if code:
            if not fallen:
                break
            driver.start()
            fallen, changed = False, now
        if (done := driver.done()) != seen:
            found.longest_wait_s = max(found.longest_wait_s, now - changed)
            if done < seen:
                found.again += seen - done
                found.most_again = max(found.most_again, seen - done)
            seen, changed = done, now
        if (there := driver.checkpoints()) != checkpoints:
            if since == MOST:  # not at the very moment it may again
                due = now + draw.uniform(0.0, PAUSE_S)
            since, checkpoints = 0, there
        if now - changed > limit_s:
            driver.kill()
            raise SystemExit(
                f"{driver.out} hangs: nothing after iteration {seen} for {limit_s:.0f} s, killed {dict(found.killed)}"
            )
        if now > due and since < MOST and (kinds := sorted(left.elements())):
            if disturb(driver, kind := draw.choice(kinds), draw):
                left[kind] -= 1
                found.killed[kind] += 1
                since, fallen = since + 1, True
                print(f"  killed a {kind} after {seen} iterations", flush=True)
            due = time.monotonic() + draw.uniform(0.0, PAUSE_S)
    if driver.process.returncode:
        raise SystemExit(f"{driver.out} ended with {driver.process.returncode}; see {driver.out.with_suffix('.log')}")


def check_gone(orphans: list[int]) -> None:
    deadline = time.monotonic() + LEAVE_S
    while still := [pid for pid in orphans if any(name in _command(Path("/proc", str(pid))) for name in MODULES.values())]:
        if time.monotonic() > deadline:
            raise SystemExit(f"processes {still} have lost their driver and are still there {LEAVE_S:.0f} s after the run")
        time.sleep(0.5)


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--kinds", default="", help="rank, driver, server, comma-separated; empty is all that there are")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    place = options.out or Path(tempfile.mkdtemp(prefix="tacit-kills-"))
    place.mkdir(parents=True, exist_ok=True)
    model = imitated(place / "start")
    said = ["--model", str(model), "--iterations", str(options.iterations), "--engine.servers", str(options.servers)]
    kinds = options.kinds.split(",") if options.kinds else ["rank", "driver", *(["server"] if options.servers else [])]
    left, draw, found = Counter(dict.fromkeys(kinds, options.kills)), random.Random(options.seed), Found()
    digests: list[str] = []
    began = time.monotonic()
    while left.total() or not digests:
        driver = Driver(place / f"run-{len(digests)}", said)
        play(driver, left if digests else Counter(), draw, options.limit_s, found)
        records = list(map(json.loads, (driver.out / "metrics.jsonl").read_text().splitlines()))
        trained = [record for record in records if record["stage"] == "rl"]
        if (steps := [record["step"] for record in trained]) != list(range(1, options.iterations + 1)):
            raise SystemExit(f"{driver.out} has iterations {steps}")
        if not any(record["grad_norm"] for record in trained):
            raise SystemExit(f"{driver.out} learned nothing, so its weights say nothing")
        if found.most_again > CHECKPOINT_EVERY:
            raise SystemExit(f"{driver.out} lost {found.most_again} iterations with checkpoints after every {CHECKPOINT_EVERY}")
        check_gone(driver.orphans)
        digests.append(json.loads((driver.out / "summary.json").read_text())["digest"])
        if not options.servers and digests[-1] != digests[0]:
            raise SystemExit(f"{driver.out} ended with other weights than the run that nobody disturbed")
        print(f"{driver.out.name} ended as it should, {time.monotonic() - began:.0f} s", flush=True)
    told = {
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
    print(json.dumps(told))


if __name__ == "__main__":
    main()
