"""Kill what a run lives in, at random moments, and see that it ends as it should.

    python benchmarks/kills.py --kills 20                 # ranks and drivers
    python benchmarks/kills.py --kills 20 --servers 1     # and vLLM servers

A small run on two ranks; every few seconds a rank, a server or the driver itself is sent SIGKILL. Ranks and servers come back
by themselves; a driver is started again with `--resume`, as a person would. Runs follow one another until all kills are spent.
A run that shows no new iteration for --limit-s hangs, and fails the benchmark, as does one that ends without all its
iterations, or (without servers, where a run is the same bit for bit) with other weights than one that nobody disturbed.
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
from pathlib import Path

KINDS = {"rank": "sharded.ranks.serving", "server": "sharded.servers.serving"}
RUN = """--world countdown --model tiny --groups 4 --group-size 4 --lr 1e-4 --kl 0 --tasks 64 --checkpoint-every 2
--tiny.hidden 32 --tiny.layers 2 --tiny.heads 2 --tiny.kv-heads 2 --evaluation.tasks 2 --evaluation.every 0
--engine sharded --engine.ranks 2 --engine.threads 1 --engine.device cpu --engine.timeout-s 60""".split()  # noqa: SIM905


class Driver:
    """`tacit train`, and `--resume` whenever it has been killed."""

    def __init__(self, out: Path, options: list[str]) -> None:
        self.out, self._options = out, options
        self._log = out.with_suffix(".log").open("a")
        self.start()

    def start(self) -> None:
        begun = (self.out / "settings.json").exists()
        said = ["--resume", str(self.out)] if begun else [*RUN, *self._options, "--out", str(self.out)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tacit", "train", *said], stdout=self._log, stderr=self._log, start_new_session=True
        )

    def children(self, kind: str) -> list[int]:
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (place / "cmdline").read_text()
                except (OSError, ValueError):
                    continue
                if parent == self.process.pid and KINDS[kind] in command:
                    found.append(int(place.name))
        return found

    def done(self) -> int:
        """Iterations so far, and whatever else there is to be seen of progress."""
        file = self.out / "metrics.jsonl"
        return file.read_text().count('"rl"') if file.exists() else 0


def disturb(driver: Driver, kinds: list[str], draw: random.Random) -> str:
    """Kill one of them; the kind that was, or nothing where none of that kind is there yet."""
    kind = draw.choice(kinds)
    if kind == "driver":
        driver.process.kill()
        driver.process.wait()
        driver.start()
        return kind
    if not (there := driver.children(kind)):
        return ""
    os.kill(draw.choice(there), signal.SIGKILL)
    return kind


def play(driver: Driver, kinds: list[str], kills: int, draw: random.Random, limit_s: float) -> list[str]:
    """To the end of the run, with up to so many kills. Returns what was killed."""
    killed: list[str] = []
    seen, changed, last = -1, time.monotonic(), time.monotonic()
    pause = draw.uniform(1.0, 12.0)
    while driver.process.poll() is None:
        time.sleep(0.1)
        if driver.done() != seen:
            seen, changed = driver.done(), time.monotonic()
        if time.monotonic() - changed > limit_s:
            driver.process.kill()
            raise SystemExit(f"{driver.out} hangs: nothing after iteration {seen} for {limit_s:.0f} s, killed so far: {killed}")
        if len(killed) < kills and time.monotonic() - last > pause:
            if kind := disturb(driver, kinds, draw):
                killed.append(kind)
                print(f"  killed a {kind} after {seen} iterations", flush=True)
            pause, last = draw.uniform(1.0, 12.0), time.monotonic()
    if driver.process.returncode:
        raise SystemExit(f"{driver.out} ended with {driver.process.returncode} after {killed}; see {driver.out}.log")
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    place = options.out or Path(tempfile.mkdtemp(prefix="tacit-kills-"))
    place.mkdir(parents=True, exist_ok=True)
    said = ["--iterations", str(options.iterations), "--engine.servers", str(options.servers)]
    kinds = ["rank", "driver", *(["server"] if options.servers else [])]
    draw, began = random.Random(options.seed), time.monotonic()
    digests = []
    killed: list[str] = []
    for number in range(1000):
        driver = Driver(place / f"run-{number}", said)
        killed += play(driver, kinds, (options.kills - len(killed)) if number else 0, draw, options.limit_s)
        summary = json.loads((driver.out / "summary.json").read_text())
        records = map(json.loads, (driver.out / "metrics.jsonl").read_text().splitlines())
        steps = [record["step"] for record in records if record["stage"] == "rl"]
        if steps != list(range(1, options.iterations + 1)):
            raise SystemExit(f"{driver.out} has iterations {steps}")
        digests.append(summary["digest"])
        if not options.servers and digests[-1] != digests[0]:
            raise SystemExit(f"{driver.out} ended with other weights than the run that nobody disturbed")
        if len(killed) >= options.kills:
            break
    counts = {kind: killed.count(kind) for kind in kinds}
    seconds = round(time.monotonic() - began)
    print(json.dumps({"killed": counts, "runs": len(digests), "different_weights": len(set(digests)), "seconds": seconds}))


if __name__ == "__main__":
    main()
