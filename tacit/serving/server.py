"""Run a server: SIGTERM and ^C let running requests finish within `--stop-s`, SIGHUP refreshes the modules."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import uvicorn

from tacit.core.errors import TacitError
from tacit.serving.app import make_app
from tacit.serving.batching import exit_process
from tacit.serving.catalog import Changes
from tacit.serving.guard import App, BoundedConnection, make_connection_class
from tacit.serving.service import Service
from tacit.serving.settings import LOOPBACK, ServingSettings


def run_server(
    app: App,
    settings: ServingSettings,
    announce: Callable[[str], None],
    lifespan: AbstractAsyncContextManager[Any] | None = None,
    on_hangup: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Answer requests until stopped. `announce` gets the address when the server is ready. `lifespan` is a context that is open
    while the server runs."""
    # Malformed requests are answered but not logged, so that clients cannot fill a disk or an unread pipe.
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", ws="none", server_header=False, proxy_headers=False,
        http=make_connection_class(settings), timeout_graceful_shutdown=settings.stop_s, timeout_keep_alive=30, backlog=2048,
    )  # fmt: skip

    async def run(listener: socket.socket) -> None:
        def ready() -> None:
            # torch alone has half a million objects; a garbage collection over them would stop all threads for 0.3 to 1.4 s.
            gc.collect()
            gc.freeze()
            limit_memory(STACK_BYTES * settings.sessions)
            host, port = listener.getsockname()[:2]
            announce(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

        async with lifespan or contextlib.nullcontext():
            copies = [listener.dup() for _ in range(LISTENING_SOCKETS - 1)] if sys.platform == "linux" else []
            await _Server(config, ready, on_hangup).serve(sockets=[listener, *copies])

    threading.stack_size(STACK_BYTES)
    with contextlib.closing(listen(settings)) as listener, asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(run(listener))
    return 0


LISTENING_SOCKETS = 32
"""Connections accepted per turn of the event loop. libuv accepts one per listening socket and turn, so with one socket a burst
of N connections, and a /health request after it, would wait N turns."""
STACK_BYTES = 1 << 21  # stack of a thread; every session with a world on this server has a thread
MIN_HEADROOM = 1 << 30


def limit_memory(extra_bytes: int) -> None:
    """Limit the growth of the process to twice its resident memory, at least 1 GiB, plus `extra_bytes`. A request that needs
    more fails with a MemoryError: a chat template can double a text in a loop and fill the machine's memory. Linux only.

    Not with a GPU: CUDA maps host memory and address space as it goes, and NVIDIA does not say how much of it counts."""
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
        return
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        status = Path("/proc/self/status").read_text()
        data, resident = (1024 * int(re.findall(rf"^{name}:\s+(\d+)", status, re.M)[0]) for name in ("VmData", "VmRSS"))
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = data + max(2 * resident, MIN_HEADROOM) + extra_bytes
        if soft == resource.RLIM_INFINITY or limit < soft:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


SEND_BYTES = 1 << 18


def listen(settings: ServingSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. By default the kernel would take up to 4 MB from each client that does not read.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    # Otherwise the kernel keeps unread answers for minutes after a connection is closed. Linux only.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * settings.answer_s))
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise TacitError(f"cannot listen on {settings.host} port {settings.port}: {error}. Choose another --port.") from error
    return listener


CLOSE_S = 2.8  # for everything after `--stop-s`; then the process exits, with a traceback


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], on_hangup: Callable[[], Awaitable[None]] | None
    ) -> None:
        super().__init__(config)
        self._ready, self._on_hangup = ready, on_hangup
        self._exit_s = (config.timeout_graceful_shutdown or 0) + CLOSE_S

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like uvicorn's, but a server that was stopped by a signal exits with status 0, and one that cannot stop exits."""

        def stop(sign: int, frame: Any) -> None:
            if not self.should_exit:  # start the watchdog, which works even if every other thread hangs
                faulthandler.dump_traceback_later(self._exit_s, exit=True, file=2)
            self.handle_exit(sign, frame)

        before = {sign: signal.signal(sign, stop) for sign in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sign, handler in before.items():
                signal.signal(sign, handler)

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        if counter % 5 == 0:
            for connection in list(self.server_state.connections):
                cast(BoundedConnection, connection).check()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and not self.should_exit:
            if self._on_hangup is not None:
                on_sighup(self._on_hangup)
            self._ready()


def on_sighup(work: Callable[[], Awaitable[None]]) -> None:
    """Call `work` on SIGHUP, if the system has that signal."""
    tasks = set()

    def handle() -> None:
        tasks.add(task := asyncio.ensure_future(work()))
        task.add_done_callback(tasks.discard)

    with contextlib.suppress(NotImplementedError, AttributeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, handle)


TOKEN = "TACIT_SERVE_TOKEN"
Tokens = dict[str, str] | None
MIN_LENGTH, MIN_DISTINCT = 16, 8  # of a token: its characters, and how many of them and of their distances differ
COMMON = re.compile("passw|secret|qwert|asdfg|admin|letmein|change.?me|welcome|12345|abcdef|your.?token", re.IGNORECASE)
SWITCH_S = 2e-4
"""Python's thread switch interval. With the default of 5 ms the batching thread would wait that long for the GIL after each
operation while requests are handled; an operation of a small model takes 0.1 ms"""


def find_tokens(file: Path | None, no_token: bool, host: str) -> tuple[Tokens, bool]:
    """(client -> token, whether the token is new), from a file, the environment, or generated. With `no_token` the tokens are
    None: any local client is served.

    Each line of the file is a token, or the name of a client and its token. `#` begins a comment.
    """
    if no_token:
        if host not in LOOPBACK:
            raise TacitError(f"--no-token needs a local host, but --host is {host!r}; leave one of them out.")
        return None, False
    if file is None and not os.environ.get(TOKEN, "").strip():
        return {"": secrets.token_urlsafe(24)}, True
    source = f"${TOKEN}" if file is None else str(file)
    try:
        text = os.environ[TOKEN] if file is None else file.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TacitError(f"cannot read the token from {file}: {error}.") from error
    tokens: dict[str, str] = {}
    for line in filter(None, (re.sub(r"(^|\s)#.*", "", line).split() for line in text.splitlines())):
        client, token = line[0] if len(line) > 1 else "", line[-1]
        if len(line) > 2 or client in tokens or token in tokens.values():
            raise TacitError(f"each line of {source} needs a client and its token, both different from the others'.")
        distances = {ord(b) - ord(a) for a, b in pairwise(token)}
        weak = len(token) < MIN_LENGTH or min(len(set(token)), len(distances)) < MIN_DISTINCT or COMMON.search(token)
        if weak or not token.isascii():
            raise TacitError(
                f"the token in {source} is weak; it needs {MIN_LENGTH} random characters: try `openssl rand -hex 16`."
            )
        tokens[client] = token
    if not tokens:
        raise TacitError(f"{source} contains no token.")
    return tokens, False


def serve(service: Service, tokens: Tokens, announce: Callable[[str], None], report: Callable[[str], None]) -> int:
    """Serve until stopped. `announce` gets the address, `report` the changes after each SIGHUP."""

    async def refresh() -> None:
        report(describe_changes(await service.catalog.refresh()))

    sys.setswitchinterval(SWITCH_S)
    app = make_app(service, tokens)
    return exit_process(run_server(app, service.settings, announce, service.running(), refresh))


def describe_changes(changes: Changes) -> str:
    changed = [f"{what}: {', '.join(names)}" for what, names in vars(changes).items() if names]
    refused = [f"{name}: {why}" for name, why in changes.refused.items()]
    return "\n".join(["; ".join(changed) or "modules are unchanged", *refused])
