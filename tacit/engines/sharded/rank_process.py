"""A rank process: it connects to the driver and runs its calls until the connection closes."""

from __future__ import annotations

import os
import sys
from typing import Any

from tacit.engines.sharded.messages import (
    CONNECT_TIMEOUT_S,
    Channel,
    ConnectionLost,
    describe_error,
    read_arguments,
    run_call,
    serialize,
)


def serve(number: int, address: tuple[str, int], key: bytes) -> None:
    channel = Channel.to(address, key, CONNECT_TIMEOUT_S)
    channel.send(serialize(number))
    from tacit.engines.sharded.rank import Rank

    own = Rank(number, channel.own_host)
    while True:
        try:
            what, arguments = channel.receive()
        except ConnectionLost:
            break  # the driver has closed, or is gone
        except Exception as error:  # a loss of a module that cannot be imported here
            answer: Any = (False, (None, f"it cannot read what it was sent: {describe_error(error)}"))
        else:
            answer = run_call(own, what, arguments)
        try:
            channel.send(serialize(answer))
        except ConnectionLost:
            break
    sys.stdout.flush()
    os._exit(0)  # without a farewell to other ranks, who may be gone


if __name__ == "__main__":
    serve(*read_arguments())
