"""A server process: it connects to the driver and samples requests until the connection closes.

It sends ("answer", result) to a call, and ("written", results) whenever completions finish.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from tacit.engines.sharded.messages import (
    CONNECT_TIMEOUT_S,
    Channel,
    ConnectionLost,
    ServerConfig,
    read_arguments,
    run_call,
    serialize,
)

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, so that killing it is enough
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # it does not support logits processors
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # our logits processor samples
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
}  # environment variables that must be set before vLLM is imported


def serve(number: int, address: tuple[str, int], key: bytes) -> None:
    channel = Channel.connect(address, key, CONNECT_TIMEOUT_S)
    server: Any = None

    def open_server(config: ServerConfig) -> None:
        from tacit.engines.sharded.vllm_backend import VllmServer

        nonlocal server
        server = VllmServer(config)

    try:
        while True:
            while channel.connection.poll(0 if server is not None and server.busy else None):
                method, arguments = channel.receive()
                if method in ("add", "cancel"):
                    getattr(server, method)(*arguments)
                    continue
                call = open_server if method == "open" else getattr(server, method)
                channel.send(serialize(("answer", run_call(call, arguments))))
            if finished := server.step():
                channel.send(serialize(("written", finished)))
    except ConnectionLost:
        pass  # the driver has closed the connection, or exited
    except BaseException:
        channel.close()  # so that the driver notices at once
        raise
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(*read_arguments())
