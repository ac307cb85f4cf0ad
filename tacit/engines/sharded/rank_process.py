"""A rank's process: it calls the driver, and then does what it is told until the line is closed."""

from __future__ import annotations

import os
import sys
from typing import Any

from tacit.engines.sharded.messages import CALLING_S, Line, Lost, done, told, told_at_start, written


def serve(number: int, address: tuple[str, int], key: bytes) -> None:
    line = Line.to(address, key, CALLING_S)
    line.send(written(number))
    from tacit.engines.sharded.rank import Rank

    own = Rank(number, line.own_host)
    while True:
        try:
            what, arguments = line.receive()
        except Lost:
            break  # the driver has closed, or is gone
        except Exception as error:  # a loss of a module that cannot be imported here
            answer: Any = (False, (None, f"it cannot read what it was sent: {told(error)}"))
        else:
            answer = done(own, what, arguments)
        try:
            line.send(written(answer))
        except Lost:
            break
    sys.stdout.flush()
    os._exit(0)  # without a farewell to other ranks, who may be gone


if __name__ == "__main__":
    serve(*told_at_start())
