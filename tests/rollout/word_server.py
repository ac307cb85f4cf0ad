"""A simulator in its own process that plays many episodes over one pipe. Run as a script, this file is that process.

Its episodes are walks: `forward` counts up, `crash` ends the process, `hang` never answers, `trip` returns an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tacit.core.types import Observation, Task, Transition

LENGTH = 3


class Server:
    """Starts the process and sends it one request at a time."""

    def __init__(self, folder: str) -> None:
        self._log = Path(folder) / "log"
        words = [sys.executable, __file__, str(self._log)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._episodes = 0
        self.alive = True
        self._hear()  # wait until it is ready

    def ask(self, *words: object) -> list:
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = self._hear()
        if answer[0] == "error":
            raise RuntimeError(answer[1])
        return answer

    def _hear(self) -> list:
        line = self._process.stdout.readline()
        if not line:
            self.alive = False
            raise EOFError(f"the server left with code {self._process.wait()}")
        return json.loads(line)

    def new_episode(self) -> int:
        self._episodes += 1
        return self._episodes

    def close(self) -> None:
        """The process ends when its pipe closes; a hanging one is killed."""
        self.alive = False
        self._process.stdin.close()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Walk:
    """One episode, played in the server process."""

    def __init__(self, server: Server) -> None:
        self._server, self._number = server, server.new_episode()

    def reset(self, task: Task) -> Observation:
        return Observation(self._server.ask("reset", self._number)[1])

    def step(self, action: str) -> Transition:
        _, text, arrived = self._server.ask("step", self._number, action)
        return Transition(Observation(text), done=arrived, success=arrived)

    def close(self) -> None:
        self._server.ask("close", self._number)


class Opener:
    """Starts a server; picklable, as worker processes need."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self) -> Server:
        return Server(self._folder)


def serve(log: Path) -> None:
    places: dict[int, int] = {}
    with log.open("a") as file:
        file.write(f"start {os.getpid()}\n")
        file.flush()
        print(json.dumps(["ready"]), flush=True)
        for line in sys.stdin:
            kind, number, *rest = json.loads(line)
            file.write(f"{kind} {number} {' '.join(rest)}".strip() + "\n")
            file.flush()
            if kind == "reset":
                places[number] = 0
            if kind == "step" and rest == ["crash"]:
                os._exit(3)
            if kind == "step" and rest == ["hang"]:
                time.sleep(600)
            if kind == "step" and rest == ["trip"]:
                print(json.dumps(["error", "tripped over"]), flush=True)
                continue
            places[number] = places.get(number, 0) + (rest == ["forward"])
            text = f"server {os.getpid()}, walk {number}, place {places[number]}"
            print(json.dumps(["ok", text, places[number] == LENGTH]), flush=True)
        file.write("end\n")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
