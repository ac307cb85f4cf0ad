"""Messages between the driver and a rank: pickled, over a socket that both sides have proved to know the same key for.

No wait is without a limit: a send that is not taken and an answer that breaks off in the middle end with an error.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from tacit.core.errors import TacitError, install

try:
    from cloudpickle import dumps as _dumps
except ImportError:
    from pickle import dumps as _dumps

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
