"""Server settings. Importing this file imports neither torch nor Starlette, so `--help` is fast."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.core.errors import TacitError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServingSettings:
    """Address and limits of a server."""

    host: str = "127.0.0.1"
    """address to listen on; 0.0.0.0 listens on every interface"""
    port: int = 8765
    """port to listen on; 0 chooses a free one"""
    sessions: int = 256
    """maximum number of open sessions"""
    turns: int = 500
    """maximum number of turns per session"""
    connections: int = 2048
    """maximum number of connections; the limit of open files minus 96 also applies"""
    client_connections: int = 512
    """maximum number of connections from one address"""
    waiting: int = 512
    """maximum number of requests waiting for the model; further ones get status 429"""
    idle_s: float = 600.0
    """end a session after this many seconds without a request"""
    answer_s: float = 60.0
    """maximum seconds to wait for an answer"""
    stop_s: int = 5
    """seconds that running requests get to finish when the server stops"""
    max_tokens: int = 512
    """maximum max_tokens of a chat completion"""
    request_bytes: int = 262_144
    """maximum size of a request body"""
    session_bytes: int = 4_194_304
    """maximum memory of a session's texts"""
    total_bytes: int = 268_435_456
    """maximum memory of all sessions' texts"""
    kept: int = 64
    """ended sessions to keep for inspection"""
    worlds: bool = True
    """allow episodes in the modules' own worlds on this server; off by default unless --host is local"""

    def __post_init__(self) -> None:
        for name in (
            "sessions", "turns", "connections", "client_connections", "waiting", "stop_s", "max_tokens", "request_bytes",
            "session_bytes", "total_bytes",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise TacitError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 1.")
        for name in ("idle_s", "answer_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise TacitError(f"--{name.replace('_', '-')} {getattr(self, name)} must be a number above 0.")
        if not 0 <= self.port < 65536:
            raise TacitError(f"--port {self.port} must be between 0 (any free port) and 65535.")
        if self.kept < 0:
            raise TacitError(f"--kept {self.kept} must not be negative.")
