"""A rank's process: it calls the driver, and then does what it is told until the line is closed."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from tacit.core.errors import NonFiniteLoss, TacitError
from tacit.engines.sharded.messages import Line, Lost, written

CALLING_S = 60.0


def serve(rank: int, address: tuple[str, int], key: bytes) -> None:
    line = Line.to(address, key, CALLING_S)
    line.send(written(rank))
    from tacit.engines.sharded.ranks.rank import Rank

    own = Rank(rank, line.own_host)
    while True:
        try:
            what, arguments = line.receive()
        except Lost:
            break  # the driver has closed, or is gone
        except Exception as error:  # a loss of a module that cannot be imported here
            answer: Any = (False, (None, f"it cannot read what it was sent: {_told(error)}"))
        else:
            answer = _done(own, what, arguments)
        try:
            line.send(written(answer))
        except Lost:
            break
    sys.stdout.flush()
    os._exit(0)  # without a farewell to other ranks, who may be gone


def _done(own: Any, what: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, getattr(own, what)(*arguments)
    except (TacitError, ValueError) as error:
        if isinstance(error, NonFiniteLoss):
            error.batch = None  # the driver has it
        error.__cause__ = error.__context__ = None
        return False, (error, str(error))
    except BaseException as error:  # CheckpointException is no Exception
        traceback.print_exc()
        sys.stderr.flush()
        return False, (None, _told(error))


def _told(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


if __name__ == "__main__":
    told = json.loads(sys.stdin.read())
    serve(told["rank"], tuple(told["address"]), bytes.fromhex(told["key"]))
