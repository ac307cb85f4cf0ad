"""A server's process: it calls the driver, and writes what it is asked for until the line is closed.

What it sends is ("answer", …) to a question, or ("written", […]) whenever completions are finished.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from tacit.engines.sharded.messages import CALLING_S, Line, Lost, Opening, done, told_at_start, written

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: whoever ends it ends all of it
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # which takes no logits processor
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # tokens are drawn by us
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
}
"""what vLLM must find in the environment when it is imported"""


class Server:
    """What the driver can ask of it."""

    def __init__(self) -> None:
        self.writer: Any = None
        self._pair: Any = None

    def open(self, told: Opening) -> str:
        """Returns the version of vLLM."""
        import vllm

        from tacit.engines.sharded.vllm_backend import Writer

        self._told, self.writer = told, Writer(told)
        return str(vllm.__version__)

    def load(self, member: str, version: int, path: str) -> None:
        self.writer.load(member, version, path)

    def meet(self, place: tuple[str, int]) -> None:
        """The first rank, who waits at `place`."""
        import torch
        from torch.distributed import TCPStore

        from tacit.engines.sharded.pair import PATIENCE, TAKES, Pair

        store = TCPStore(*place, is_master=False, timeout=PATIENCE)
        self._pair = Pair(store, TAKES, torch.device(self._told.device))

    def take(self, member: str, version: int, told: Sequence[tuple[str, tuple[int, ...], str]]) -> None:
        """Weights that the first rank gives: their names, shapes and number formats."""
        self.writer.take(member, version, ((name, self._pair.take(shape, dtype)) for name, shape, dtype in told))

    @property
    def busy(self) -> bool:
        return self.writer is not None and self.writer.busy


def serve(number: int, address: tuple[str, int], key: bytes) -> None:
    line = Line.to(address, key, CALLING_S)
    line.send(written(number))
    own = Server()
    try:
        while True:
            while line.connection.poll(0 if own.busy else None):
                what, arguments = line.receive()
                if what in ("add", "forget"):
                    getattr(own.writer, what)(*arguments)
                else:
                    line.send(written(("answer", done(own, what, arguments))))
            if finished := own.writer.step():
                line.send(written(("written", finished)))
    except Lost:
        pass  # the driver has closed, or is gone
    except BaseException:
        line.close()  # the driver need not wait to hear of it
        raise
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(*told_at_start())
