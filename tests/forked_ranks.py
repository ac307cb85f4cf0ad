"""Forked ranks of the sharded engine, which skip importing torch. cli/test_sharded_run.py starts ranks from scratch."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module

import pytest
from forked import Forked

from tacit.engines.sharded.launch import ProcessLauncher, Role


class ForkedLauncher:
    """Replaces `ProcessLauncher` for ranks."""

    host = "127.0.0.1"

    def __init__(self, role: Role) -> None:
        self.role = role

    def start(self, number: int, address: tuple[str, int], key: bytes) -> ForkedRank:
        environment = {"GLOO_SOCKET_IFNAME": "lo", **self.role.variables()}
        return ForkedRank(Forked(partial(_serve, self.role.module, number, address, key), (), environment))


class ForkedRank:
    def __init__(self, process: Forked) -> None:
        self._process = process
        self.name = f"process {process.pid}"

    def exit_reason(self) -> str | None:
        code = self._process.code
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"it left with exit code {code}"

    def last_output(self) -> str:
        return self._process.out + self._process.err

    def stop(self) -> None:
        self._process.kill()


def _serve(module: str, number: int, address: tuple[str, int], key: bytes, words: list[str]) -> None:
    import_module(module).serve(number, address, key)


@contextmanager
def forked_ranks() -> Iterator[None]:
    """Fork the ranks that are started in this context; servers start as usual."""

    def launcher(role: Role) -> ForkedLauncher | ProcessLauncher:
        return ForkedLauncher(role) if role.name == "rank" else ProcessLauncher(role)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacit.engines.sharded.policy.ProcessLauncher", launcher)
        yield
