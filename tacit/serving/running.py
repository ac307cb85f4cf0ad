"""A server from its start to an orderly end: SIGTERM and ^C let what is under way finish, SIGHUP looks for modules again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import uvicorn

from tacit.core.errors import TacitError
from tacit.serving.app import make_app
from tacit.serving.batching import leave
from tacit.serving.catalogue import Changes
from tacit.serving.guard import App, connections_for
from tacit.serving.service import Service
from tacit.serving.settings import LOOPBACK, ServingSettings

# Answer requests until told to stop: SIGTERM and ^C let what is under way finish, within `--stop-s`.


def answer_requests(
    app: App,
    settings: ServingSettings,
    announce: Callable[[str], None],
    around: AbstractAsyncContextManager[Any] | None = None,
    hang_up: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """`announce` is given the address once requests are answered; `around` is open meanwhile; SIGHUP does `hang_up`."""
    # A malformed request is answered, not logged: whoever sends many must not fill a disk, or a pipe that nobody reads.
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False,
        http=connections_for(settings), timeout_graceful_shutdown=settings.stop_s, timeout_keep_alive=30, backlog=2048,
    )  # fmt: skip

    async def run(listener: socket.socket) -> None:
        async with around or contextlib.nullcontext():
            await _Server(config, lambda: announce(_address(listener)), hang_up).serve(sockets=[listener])

    with (
        contextlib.closing(listen(settings)) as listener,
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
    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], hang_up: Callable[[], Awaitable[None]] | None
    ) -> None:
        super().__init__(config)
        self._ready, self._hang_up = ready, hang_up

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
            if self._hang_up is not None:
                on_hang_up(self._hang_up)
            self._ready()


def on_hang_up(work: Callable[[], Awaitable[None]]) -> None:
    """SIGHUP does this, where there is such a signal, while the event loop runs."""
    under_way = set()

    def heard() -> None:
        under_way.add(task := asyncio.ensure_future(work()))
        task.add_done_callback(under_way.discard)

    with contextlib.suppress(NotImplementedError, AttributeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, heard)


TOKEN = "TACIT_SERVE_TOKEN"
LEAST_TOKEN = 8
TAKE_TURNS_S = 2e-4
"""after which Python lets another thread go on. The model's thread lets go at every operation, and by default would wait 5 ms
to go on while requests are read and answered; an operation of a small model takes a fiftieth of that"""


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


def serve(service: Service, token: str | None, announce: Callable[[str], None], remark: Callable[[str], None]) -> int:
    """Until it is told to stop. `announce` is given the address once requests are answered, `remark` what SIGHUP changes."""

    async def look_again() -> None:
        remark(in_words(await service.refresh()))

    sys.setswitchinterval(TAKE_TURNS_S)
    app = make_app(service, token)
    return leave(answer_requests(app, service.settings, announce, service.running(), look_again))


def in_words(changes: Changes) -> str:
    told = [f"{what}: {', '.join(names)}" for what, names in vars(changes).items() if names]
    refused = [f"{name}: {why}" for name, why in changes.refused.items()]
    return "\n".join(["; ".join(told) or "modules are as they were", *refused])
