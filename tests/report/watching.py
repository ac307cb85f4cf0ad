"""`tacit watch` in its own process, and runs that grow meanwhile."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forked import start
from written import episode

from tacit.runs.trajectories import write_records


class Watching:
    def __init__(self, *words: str) -> None:
        self.process = start("watch", *words, "--port", "0", NO_COLOR="1", COLUMNS="200")
        self.address = self.process.address().rstrip("/")
        self.notes = [line.strip() for line in self.process.out.partition("http://")[0].splitlines()]

    def get(self, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", int(self.address.rpartition(":")[2]), timeout=60)
        try:
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def stop(self) -> int:
        return self.process.stop()


@contextmanager
def watching(*places: Path, flags: tuple[str, ...] = ()) -> Iterator[Watching]:
    found = Watching(*map(str, places), *flags)
    try:
        yield found
    finally:
        assert found.stop() == 0


def grow(run: Path, step: int, won: int = 1, **more: Any) -> None:
    """Add one iteration as a run does: the recording at once, then a line of metrics."""
    write_records(run / "trajectories" / f"rl-{step:06d}.jsonl.gz", [episode(100 * step + n, n < won, 4) for n in range(3)])
    line = {"stage": "rl", "step": step, "success": won / 3, "entropy": 1.0 / step, "at": 1.0, **more}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def contents(run: Path) -> dict[str, tuple[int, bytes]]:
    """All files of a run, including hidden ones."""
    return {str(f.relative_to(run)): (f.stat().st_mtime_ns, f.read_bytes()) for f in run.rglob("*") if f.is_file()}
