"""join_cluster with a Ray cluster that is unreachable or requires a token."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tacit.core.errors import TacitError
from tacit.core.platform import join_cluster


def _ray(knocked: list[str]) -> Any:
    """A fake `ray` module whose `init` always fails."""

    def init(address: str, **_: Any) -> None:
        knocked.append(address)
        raise ConnectionError(f"Failed to connect to Ray cluster at {address}.\nInvalidAuthToken")

    return SimpleNamespace(is_initialized=lambda: False, init=init)


@pytest.fixture
def port() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield door.getsockname()[1]


@pytest.mark.parametrize("place", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
@pytest.mark.usefixtures("trusted_code")
def test_closed_port_is_reported_without_calling_ray(monkeypatch: pytest.MonkeyPatch, port: int, place: str) -> None:
    """Ray itself would retry HOST:PORT for more than nine minutes."""
    knocked: list[str] = []
    monkeypatch.setitem(sys.modules, "ray", _ray(knocked))
    with socket.create_server(("127.0.0.1", 0)) as door:
        closed = place.format(door.getsockname()[1])
    with pytest.raises(TacitError, match=rf"no Ray cluster answers at '{closed}'.*refused.*ray start --head.*--engine.address"):
        join_cluster(closed, "--engine.address", 2)
    assert not knocked
    with pytest.raises(TacitError, match="no Ray cluster answers"):
        join_cluster(place.format(port), "--engine.address", 2)
    assert knocked == [place.format(port)]


def test_token_error_suggests_ray_auth_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray start --head` requires a token if Ray ever ran on that machine. Clients must then set RAY_AUTH_MODE."""
    monkeypatch.setitem(sys.modules, "ray", _ray([]))
    with pytest.raises(TacitError, match=r"Failed to connect to Ray cluster at auto\..*RAY_AUTH_MODE=token"):
        join_cluster("auto", "--workers-at", 2)
