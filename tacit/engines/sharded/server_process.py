"""A server process: it connects to the driver and samples what is requested until the connection closes.

It sends ("answer", …) to a call, and ("written", […]) whenever completions finish.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tacit.engines.sharded.messages import (
    CONNECT_TIMEOUT_S,
    RECEIVER,
    TRANSFER_S,
    Channel,
    ConnectionLost,
    ServerConfig,
    TensorChannel,
    read_arguments,
    run_call,
    serialize,
)

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

    writer: Any = None
    _channel: Any = None

    def open(self, told: ServerConfig) -> str:
        """Returns the version of vLLM."""
        import vllm

        from tacit.engines.sharded.vllm_backend import VllmServer

        self._config, self.writer = told, VllmServer(told)
        return str(vllm.__version__)

    def load(self, member: str, version: int, path: str) -> None:
        self.writer.load(member, version, path)

    def connect_weight_channel(self, place: tuple[str, int]) -> None:
        """The first rank, who waits at `place`."""
        import torch
        from torch.distributed import TCPStore

        store = TCPStore(*place, is_master=False, timeout=timedelta(seconds=TRANSFER_S))
        self._channel = TensorChannel(store, RECEIVER, torch.device(self._config.device))

    def receive_weights(self, member: str, version: int, told: Sequence[tuple[str, tuple[int, ...], str]]) -> None:
        """Weights that the first rank gives: their names, shapes and number formats."""
        self.writer.receive_weights(
            member, version, ((name, self._channel.receive(shape, dtype)) for name, shape, dtype in told)
        )

    @property
    def busy(self) -> bool:
        return self.writer is not None and self.writer.busy


def serve(number: int, address: tuple[str, int], key: bytes) -> None:
    channel = Channel.to(address, key, CONNECT_TIMEOUT_S)
    channel.send(serialize(number))
    own = Server()
    try:
        while True:
            while channel.connection.poll(0 if own.busy else None):
                what, arguments = channel.receive()
                if what in ("add", "forget"):
                    getattr(own.writer, what)(*arguments)
                else:
                    channel.send(serialize(("answer", run_call(own, what, arguments))))
            if finished := own.writer.step():
                channel.send(serialize(("written", finished)))
    except ConnectionLost:
        pass  # the driver has closed, or is gone
    except BaseException:
        channel.close()  # the driver need not wait to hear of it
        raise
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(*read_arguments())
