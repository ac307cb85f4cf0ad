"""RPC between the driver and its ranks and servers: pickled messages over an authenticated socket. Every wait has a timeout."""

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

from tacit.core.errors import NonFiniteLoss, TacitError, describe_error, install_command
from tacit.core.protocols import Sampling

try:
    from cloudpickle import dumps as _dumps
except ImportError:
    from pickle import dumps as _dumps

CONNECT_TIMEOUT_S = 60.0  # seconds for a started process to connect to the driver
ConnectionLost = (EOFError, OSError)  # raised by a channel if the other end has closed or does not read


def serialize(message: Any) -> bytes:
    """A message as bytes; the same bytes can be sent to every rank."""
    try:
        return _dumps(message)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TacitError(
            f"cannot send the call to the ranks: {error}. Define losses at the top level of a module, or install cloudpickle: "
            f"{install_command('cluster')}."
        ) from error


class Channel:
    """One end of an authenticated connection."""

    def __init__(self, connection: Connection):
        self.connection = connection

    @classmethod
    def connect(cls, address: tuple[str, int], key: bytes, timeout_s: float) -> Channel:
        """Connect to the driver, from a rank or server."""
        channel = cls(Connection(socket.create_connection(address, timeout=timeout_s).detach()))
        channel.set_timeout(timeout_s)
        answer_challenge(channel.connection, key)
        deliver_challenge(channel.connection, key)
        channel.set_timeout(0.0)
        return channel

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout for sending or receiving a message; 0 is no timeout."""
        timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        os.set_blocking(self.connection.fileno(), True)
        with socket.socket(fileno=os.dup(self.connection.fileno())) as duplicate:
            duplicate.settimeout(None)
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            if duplicate.family != socket.AF_UNIX:
                duplicate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def own_host(self) -> str:
        """This machine's address on this connection."""
        with socket.socket(fileno=os.dup(self.connection.fileno())) as duplicate:
            return duplicate.getsockname()[0]

    def send(self, message: bytes) -> None:
        self.connection.send_bytes(message)

    def receive(self) -> Any:
        return pickle.loads(self.connection.recv_bytes())

    def close(self) -> None:
        self.connection.close()


def accept_channel(listener: socket.socket, key: bytes, timeout_s: float) -> Channel | None:
    """The driver's end of a new connection; None if the other end lacks the key."""
    accepted = listener.accept()[0]
    accepted.setblocking(True)
    channel = Channel(Connection(accepted.detach()))
    try:
        channel.set_timeout(timeout_s)
        deliver_challenge(channel.connection, key)
        answer_challenge(channel.connection, key)
        return channel
    except BaseException as error:
        channel.close()
        if isinstance(error, (AuthenticationError, *ConnectionLost)):
            return None
        raise


def read_arguments() -> tuple[int, tuple[str, int], bytes]:
    """(number, address of the driver, key), from stdin."""
    arguments = json.loads(sys.stdin.read())
    return arguments["number"], tuple(arguments["address"]), bytes.fromhex(arguments["key"])


def run_call(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """(True, result), or (False, (error for the driver to raise, or None, its description))."""
    try:
        return True, call(*arguments)
    except (TacitError, ValueError) as error:
        if isinstance(error, NonFiniteLoss):
            error.batch = None  # the driver has it
        error.__cause__ = error.__context__ = None
        return False, (error, str(error))
    except BaseException as error:  # CheckpointException is not an Exception
        traceback.print_exc()
        sys.stderr.flush()
        return False, (None, describe_error(error))


# Messages to and from servers. No heavy imports, since a server may run in another interpreter.


@dataclass(frozen=True)
class ServerConfig:
    checkpoint: str
    device: str
    dtype: str
    context: int  # maximum prompt plus completion, in tokens
    max_batch: int
    end_tokens: tuple[int, ...]
    lora_rank: int  # rank of adapters; 0: all weights are trained and transferred
    memory: float  # share of the GPU's memory that the server may use


@dataclass(frozen=True)
class SampleRequest:
    request_id: int
    member: str
    prompt: tuple[int, ...]
    seed: int
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True)
class SampleResult:
    """A completion, sampled from one version of the weights."""

    request_id: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    version: int
