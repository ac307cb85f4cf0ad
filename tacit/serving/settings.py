"""Server settings. Importing this file imports neither torch nor Starlette, so `--help` is fast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from tacit.core.bounds import AtLeastOne, Bound, Count, check_bounds
from tacit.core.errors import TacitError

Seconds = Annotated[float, Bound(lambda v: 0 < v < math.inf, "must be a number above 0")]
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServingSettings:
    """Address and limits of a server."""

    host: str = "127.0.0.1"
    """address to listen on; 0.0.0.0 listens on every interface"""
    port: int = 8765
    """port to listen on; 0 chooses a free one"""
    sessions: AtLeastOne = 256
    """maximum number of open sessions"""
    turns: AtLeastOne = 500
    """maximum number of turns per session"""
    connections: AtLeastOne = 2048
    """maximum number of connections; the limit of open files minus 96 also applies"""
    client_connections: AtLeastOne = 512
    """maximum number of connections from one address"""
    waiting: AtLeastOne = 512
    """maximum number of requests waiting for the model; further ones get status 429"""
    idle_s: Seconds = 600.0
    """end a session after this many seconds without a request"""
    answer_s: Seconds = 60.0
    """maximum seconds to wait for an answer"""
    stop_s: AtLeastOne = 5
    """seconds that running requests get to finish when the server stops"""
    max_tokens: AtLeastOne = 512
    """maximum max_tokens of a chat completion"""
    request_bytes: AtLeastOne = 262_144
    """maximum size of a request body"""
    session_bytes: AtLeastOne = 4_194_304
    """maximum memory of a session's texts"""
    total_bytes: AtLeastOne = 268_435_456
    """maximum memory of all sessions' texts"""
    kept: Count = 64
    """ended sessions to keep for inspection"""
    worlds: bool = True
    """allow episodes in the modules' own worlds on this server; off by default unless --host is local"""

    def __post_init__(self) -> None:
        check_bounds(self)
        if not 0 <= self.port < 65536:
            raise TacitError(f"port = {self.port} must be between 0 (any free port) and 65535.")
