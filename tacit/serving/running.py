"""A server from its start to an orderly end: SIGTERM and ^C let what is under way finish, SIGHUP looks for modules again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from tacit.core.errors import TacitError
from tacit.serving.app import make_app
from tacit.serving.service import Service
from tacit.serving.settings import LOOPBACK, ServingSettings

TOKEN = "TACIT_SERVE_TOKEN"
LEAST_TOKEN = 8
GRACE_S = 10
"""how long requests under way may take once the server is told to stop"""


def find_token(file: Path | None, without: bool, host: str) -> str | None:
    """From a file, from the environment, or a new one; none only where nobody else can ask."""
    if without:
        if host not in LOOPBACK:
            raise TacitError(f"--no-token is for this machine alone, and host {host!r} lets others in; leave one of them out.")
        return None
    if file is not None:
        try:
            token = file.expanduser().read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise TacitError(f"cannot read the token from {file}: {error}.") from error
        source = str(file)
    else:
        token, source = os.environ.get(TOKEN, "").strip(), f"${TOKEN}"
        if not token:
            return secrets.token_urlsafe(24)
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise TacitError(f"the token in {source} must have at least {LEAST_TOKEN} printable characters and no space.")
    return token


def serve(service: Service, token: str | None, announce: Callable[[str], None]) -> int:
    """Until it is told to stop. `announce` is given the address once requests are answered."""
    # A malformed request is answered, not logged: whoever sends many must not fill a disk, or a pipe that nobody reads.
    config = uvicorn.Config(
        make_app(service, token), log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
        timeout_graceful_shutdown=GRACE_S, timeout_keep_alive=30, backlog=2048,
    )  # fmt: skip

    async def run(listener: socket.socket) -> None:
        async with service.running():
            await _Server(config, service, lambda: announce(_address(listener))).serve(sockets=[listener])

    with (
        contextlib.closing(listen(service.settings)) as listener,
        asyncio.Runner(loop_factory=config.get_loop_factory()) as runner,
    ):
        runner.run(run(listener))
    return 0


def listen(settings: ServingSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise TacitError(f"cannot listen on {settings.host} port {settings.port}: {error}. Choose another --port.") from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but a server that stopped in order was not killed: it ends with status 0."""
        before = {sign: signal.signal(sign, self.handle_exit) for sign in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and not self.should_exit:
            with contextlib.suppress(NotImplementedError, AttributeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._look_again)
            self._ready()

    def _look_again(self) -> None:
        async def look() -> None:
            changes = await self._service.refresh()
            told = [f"{what}: {', '.join(names)}" for what, names in vars(changes).items() if names]
            print("; ".join(told) or "modules are as they were", file=sys.stderr, flush=True)
            for name, why in changes.refused.items():
                print(f"{name}: {why}", file=sys.stderr, flush=True)

        self._looking = asyncio.ensure_future(look())
