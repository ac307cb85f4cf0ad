"""Messages between the driver and a rank or a server: pickled, over a socket that both sides have proved to know the same key
for.

No wait is without a limit: a send that is not taken and an answer that breaks off in the middle end with an error.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from tacit.core.errors import NonFiniteLoss, TacitError, install
from tacit.core.protocols import Sampling

try:
    from cloudpickle import dumps as _dumps
except ImportError:
    from pickle import dumps as _dumps

CALLING_S = 60.0
"""how long a process that was started may take to reach the driver"""
Lost = (EOFError, OSError)
"""what a line raises whose other end is gone or does not take what it is sent"""


def written(message: Any) -> bytes:
    """A message as it is sent; the same bytes can go to every rank."""
    try:
        return _dumps(message)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TacitError(
            f"this cannot be sent to the ranks: {error}. Define losses at the top of a module of their own, or install what "
            f"can send more: {install('cluster')}."
        ) from error


class Line:
    """One end of a line. Messages are whole or not at all."""

    def __init__(self, connection: Connection):
        self.connection = connection

    @classmethod
    def answered(cls, taken: socket.socket, key: bytes, limit_s: float) -> Line:
        """The driver's end, of a socket that somebody connected to."""
        taken.setblocking(True)
        line = cls(Connection(taken.detach()))
        line.limit(limit_s)
        try:
            deliver_challenge(line.connection, key)
            answer_challenge(line.connection, key)
        except BaseException:
            line.close()
            raise
        return line

    @classmethod
    def to(cls, address: tuple[str, int], key: bytes, limit_s: float) -> Line:
        """A rank's end."""
        line = cls(Connection(socket.create_connection(address, timeout=limit_s).detach()))
        line.limit(limit_s)
        answer_challenge(line.connection, key)
        deliver_challenge(line.connection, key)
        line.limit(0.0)
        return line

    def limit(self, seconds: float) -> None:
        """How long a message may take on the way, once it has begun; 0 is without end."""
        whole = int(seconds)
        value = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        os.set_blocking(self.connection.fileno(), True)
        with socket.socket(fileno=os.dup(self.connection.fileno())) as same:
            same.settimeout(None)
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            if same.family != socket.AF_UNIX:
                same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def own_host(self) -> str:
        """The address of this machine, on the way to the other end."""
        with socket.socket(fileno=os.dup(self.connection.fileno())) as same:
            return same.getsockname()[0]

    def send(self, message: bytes) -> None:
        self.connection.send_bytes(message)

    def receive(self, loads: Callable[[bytes], Any] = pickle.loads) -> Any:
        return loads(self.connection.recv_bytes())

    def close(self) -> None:
        self.connection.close()


def caller(door: socket.socket, key: bytes, look_s: float, limit_s: float) -> tuple[int, Line] | None:
    """(its number, the line to it) of a process that calls within `look_s`; None where nobody does, or a stranger."""
    door.settimeout(look_s)
    try:
        line = Line.answered(door.accept()[0], key, limit_s)
        return line.receive(), line
    except (AuthenticationError, *Lost):
        return None


def told_at_start() -> tuple[int, tuple[str, int], bytes]:
    """(number, address of the driver, key), as a plain process is told them."""
    given = json.loads(sys.stdin.read())
    return given["number"], tuple(given["address"]), bytes.fromhex(given["key"])


def done(own: Any, what: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """The answer to a question: (True, what came of it), or (False, (an error that may be raised, what is told of it))."""
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
        return False, (None, told(error))


def told(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


# What the driver and a server say to each other. Light: nothing heavy is imported, and nothing but plain data travels, since
# a server may run in another interpreter.


@dataclass(frozen=True)
class Opening:
    """What a server is told first."""

    checkpoint: str
    device: str
    dtype: str
    context: int
    """longest prompt plus completion, in tokens"""
    max_batch: int
    end_tokens: tuple[int, ...]
    lora_rank: int
    """of adapters; 0: all parameters are trained, and the weights themselves are handed over"""
    memory: float
    """share of the GPU's memory that it may take"""


@dataclass(frozen=True)
class Order:
    """One completion to be written."""

    request_id: int
    member: str
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True)
class Delivery:
    """A completion that was written, by one version of the weights from its first token to its last."""

    request_id: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    version: int
