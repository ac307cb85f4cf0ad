"""Settings of a server. Importing this file imports neither torch nor Starlette, so `--help` stays quick."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.core.errors import TacitError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServingSettings:
    """Where a server listens, and how much it lets anybody ask of it."""

    host: str = "127.0.0.1"
    """address to listen on; 0.0.0.0 is every network this machine is in"""
    port: int = 8765
    """port to listen on; 0 takes a free one"""
    sessions: int = 256
    """most sessions open at once"""
    turns: int = 500
    """most turns of a session"""
    waiting: int = 512
    """most requests that wait for the model at once; more are asked to come back"""
    idle_s: float = 600.0
    """a session that nobody has spoken to for so many seconds is ended"""
    answer_s: float = 60.0
    """longest wait for an answer, in seconds"""
    stop_s: int = 5
    """told to stop, so many seconds go to requests under way; then they are refused"""
    max_tokens: int = 512
    """most tokens that a chat completion may ask for"""
    request_bytes: int = 262_144
    """largest request body"""
    kept: int = 64
    """sessions that are over and can still be looked at"""
    worlds: bool = True
    """let episodes be played in the modules' own worlds, here"""

    def __post_init__(self) -> None:
        for name in ("sessions", "turns", "waiting", "stop_s", "max_tokens", "request_bytes"):
            if getattr(self, name) < 1:
                raise TacitError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 1.")
        for name in ("idle_s", "answer_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise TacitError(f"--{name.replace('_', '-')} {getattr(self, name)} must be a number above 0.")
        if not 0 <= self.port < 65536:
            raise TacitError(f"--port {self.port} must be between 0 (any that is free) and 65535.")
        if self.kept < 0:
            raise TacitError(f"--kept {self.kept} must not be negative.")
