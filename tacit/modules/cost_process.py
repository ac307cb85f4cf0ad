"""Measure one agent in its own process, so that memory and connections are its own: `python -m tacit.modules.cost_process`.

Reads a `CostJob` as JSON from standard input and writes the result to the file it names.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CostJob:
    target: str  # modules or a model; empty for an endpoint
    said: Sequence[tuple[Sequence[str], Any]]  # settings: (place, value)
    react: str = ""  # prompt format, a key of `react_contexts`; empty: the modules' own
    endpoint: dict[str, Any] | None = None
    base: str | None = None
    fallback: str | None = None
    batch: int = 1
    out: str = ""  # file for the result


class Connections:
    """Records every host that this process looks up or connects to."""

    def __init__(self) -> None:
        self.hosts: dict[str, None] = {}
        sys.addaudithook(self._record)

    def _record(self, event: str, arguments: tuple[Any, ...]) -> None:
        address = arguments[1] if event == "socket.connect" else arguments[:1] if event == "socket.getaddrinfo" else None
        if isinstance(address, tuple) and address and address[0]:  # a path is a local socket
            self.hosts[address[0].decode() if isinstance(address[0], bytes) else str(address[0])] = None


def measure(job: CostJob) -> dict[str, Any]:
    from tacit.config.agents import open_endpoint, open_target
    from tacit.config.measuring import PanelEvaluation
    from tacit.evaluation.tokens import react_contexts
    from tacit.modules.router import open_agent
    from tacit.rollout.episodes import RolloutObserver
    from tacit.training.setup import completion_limit, evaluation_sampling

    class Clock(RolloutObserver):
        began = ended = 0.0

        def begin(self, already: int) -> None:
            self.began = time.perf_counter()

        def on_episode_end(self, index: int, trajectory: Any) -> None:
            self.ended = time.perf_counter()

    started, clock, sent = time.perf_counter(), Clock(), [0]
    said = {tuple(key): value for key, value in job.said}
    if not job.react:
        target: Any = open_agent(job.target, said, base=job.base, fallback=job.fallback)
    else:
        target = open_endpoint(said, **job.endpoint) if job.endpoint else open_target(job.target, said)
        context = react_contexts(target.world.wording(target.recipe.settings.prompt.wording))[job.react]
        limit = completion_limit(target.recipe.train, context, target.world)
        target = replace(target, context=context, sampling=evaluation_sampling(target.recipe.train, limit))
        if (settle := target.settle) is not None:

            def counting(trajectory: Any) -> Any:  # bytes, before `settle` puts the server's counts
                sent[0] += sum(len(step.prompt_tokens) for step in trajectory.steps)
                return settle(trajectory)

            target = replace(target, settle=counting)
    loaded = time.perf_counter() - started
    with tempfile.TemporaryDirectory(prefix="tacit-cost-") as directory:
        sitting = PanelEvaluation(target, out=Path(directory), fresh=True, said=said)
        measured = sitting.play(job.batch, clock, clock.begin)
        uses = [] if job.react else [use.to_json() for use in sitting.account(measured)[0]]
    score, episodes, torch = measured.score.to_json(), len(measured.played), sys.modules.get("torch")
    return {
        "score": score,
        "turns": sum(map(len, measured.played)),
        "seconds_per_episode": (clock.ended - clock.began) / episodes,
        "seconds_to_load": loaded,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "device_peak_bytes": int(torch.cuda.max_memory_allocated()) if torch and torch.cuda.is_available() else None,
        "sent_bytes_per_episode": sent[0] / episodes if job.endpoint else 0.0,
        "uses": uses,
    }


def main() -> int:
    connections = Connections()
    from tacit.core.errors import TacitError

    job = CostJob(**json.load(sys.stdin))
    try:
        result = measure(job)
    except TacitError as error:
        result = {"error": str(error)}
    Path(job.out).write_text(json.dumps({**result, "hosts": list(connections.hosts)}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
