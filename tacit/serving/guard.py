"""The guard in front of every app: authentication, size and time limits, and metrics. Plain ASGI, to add little latency."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from starlette.routing import Match, Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tacit.serving.requests import STOPPING
from tacit.serving.settings import LOOPBACK, ServingSettings

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Prometheus metrics."""

    def __init__(self) -> None:
        disable_created_metrics()
        own = self._registry = CollectorRegistry()
        ProcessCollector(registry=own)
        self._requests = Counter("tacit_requests", "answered requests", ("route", "status"), registry=own)
        self._seconds = Histogram("tacit_request_seconds", "from request to answer", ("route",), buckets=SECONDS, registry=own)
        self._turns = Counter("tacit_turns", "actions taken", ("module", "by"), registry=own)
        self._tokens = Counter("tacit_tokens", "tokens of the model", ("module", "kind"), registry=own)
        self._begun = Counter("tacit_sessions_begun", "sessions begun", ("module",), registry=own)
        self._ended = Counter("tacit_sessions_ended", "sessions over", ("module", "outcome"), registry=own)
        self._rows = Histogram("tacit_batch_rows", "requests under way whenever the model goes on", buckets=ROWS, registry=own)

    def add_gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        Gauge(f"tacit_{name}", meaning, registry=self._registry).set_function(value)

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def turn(self, module: str, by: str, read: int, wrote: int) -> None:
        self._turns.labels(module, by).inc()
        self.tokens(module, read, wrote)

    def tokens(self, module: str, read: int, wrote: int) -> None:
        self._tokens.labels(module, "read").inc(read)
        self._tokens.labels(module, "written").inc(wrote)

    def begun(self, module: str) -> None:
        self._begun.labels(module).inc()

    def ended(self, module: str, outcome: str) -> None:
        self._ended.labels(module, outcome).inc()

    def batch(self, rows: int) -> None:
        self._rows.observe(rows)

    def text(self) -> bytes:
        return generate_latest(self._registry)


Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
MAX_DISCARDED = 1 << 24
"""bytes of an oversized request that are still read: most clients look for an answer only after sending everything"""
PUBLIC_PATHS = ("/", "/health")
"""readable without a token"""


class NamedRoute(Route):
    """A route that puts itself into the scope, so that metrics can name it; older versions of Starlette do not."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


class Guard:
    def __init__(self, app: App, token: str | None, settings: ServingSettings, metrics: Metrics) -> None:
        """Without a token, only requests to a local host name from the server's own page are answered."""
        self._app, self._token, self._metrics = app, token, metrics
        self._max_bytes, self._timeout_s = settings.request_bytes, settings.answer_s

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, begun = time.perf_counter(), 500, False
        headers = {name.lower(): value for name, value in scope["headers"]}

        async def sending(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
            await send(message)

        try:
            if (refusal := self._check_headers(scope, headers)) is not None:
                await send_error(sending, *refusal)
                return
            try:
                async with asyncio.timeout(self._timeout_s):
                    body = await self._read_body(receive)
            except TimeoutError:
                await send_error(sending, 408, f"the request did not arrive within {self._timeout_s:g} s.")
                return
            if body is None:
                await send_error(sending, 413, f"the request is too large; the limit is {self._max_bytes} bytes.")
                return
            await self._app(scope, _replay_body(body, receive), sending)
        except asyncio.CancelledError:  # uvicorn cancels running requests when the server stops
            if begun:
                raise
            await send_error(sending, 503, STOPPING)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._metrics.request(f"{scope['method']} {path}"[:80] if route else "other", status, time.perf_counter() - began)

    async def _read_body(self, receive: Any) -> bytes | None:
        """The body; None if it is too large, whatever the headers said."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            piece = message.get("body", b"")
            size += len(piece)
            if size <= self._max_bytes:
                pieces.append(piece)
            if not message.get("more_body") or size > MAX_DISCARDED:
                return b"".join(pieces) if size <= self._max_bytes else None

    def _check_headers(self, scope: Any, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        """(status, message) of a request that is refused."""
        if self._token is None:
            host = headers.get(b"host", b"").decode("latin-1")
            if _without_port(host) not in LOOPBACK:
                return 403, f"without a token only local requests are answered, not requests to host {host[:80]!r}."
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin and origin.partition("://")[2] != host:
                return 403, f"without a token only this server's own page is answered, not a page of {origin[:80]!r}."
        elif scope["path"] not in PUBLIC_PATHS:
            kind, _, token = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not token:
                return 401, "a token is needed: send the header `Authorization: Bearer TOKEN`."
            if not hmac.compare_digest(token.strip(), self._token.encode()):
                return 401, "the token is wrong."
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MAX_DISCARDED:
            return 413, f"the request has {length.decode('latin-1')[:20]} bytes; the limit is {self._max_bytes} bytes."
        return None


def _replay_body(body: bytes, receive: Any) -> Any:
    """A `receive` that first returns the body that was already read."""
    replayed = False

    async def receiving() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


async def send_error(send: Any, status: int, message: str) -> None:
    body = json.dumps(make_error(status, message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):  # the rest of the request is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def make_error(status: int, message: str) -> dict[str, Any]:
    """The body of every error, in OpenAI's format, so that its clients show the message."""
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _without_port(host: str) -> str:
    """
    >>> _without_port("[::1]:8765"), _without_port("localhost:80")
    ('::1', 'localhost')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


# Limits per connection: size and duration of a request's headers, number of connections. They apply before authentication.

MAX_HEADERS = 65_536
"""bytes"""
TOO_LARGE = f"the request headers are too large; the limit is {MAX_HEADERS} bytes."
MAX_CONNECTIONS = 2048
OTHER_FILES = 64
"""open files reserved for anything but connections"""


def make_connection_class(settings: ServingSettings) -> type[HttpToolsProtocol]:
    class Bounded(BoundedConnection):
        timeout_s, limit = settings.answer_s, max_connections()

    return Bounded


def max_connections() -> int:
    """Stay below the limit of open files: at that limit the server can neither accept nor refuse a connection, and spins."""
    try:
        import resource
    except ImportError:
        return MAX_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, files - OTHER_FILES))


class BoundedConnection(HttpToolsProtocol):
    timeout_s = 60.0
    limit = MAX_CONNECTIONS

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head, self._heads, self._bytes, self._head = True, 0, 0, 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            self._refuse(503, f"{self.limit} connections are open, which is the limit; try again later.")
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        heads, in_head = self._heads, self._in_head
        super().data_received(data)
        if self._in_head and self._heads == heads and not self.transport.is_closing():
            self._bytes += len(data) if in_head else 0  # the end of a body does not count
            if self._bytes > MAX_HEADERS:
                self._refuse(431, TOO_LARGE)
            elif self._deadline is None:
                self._start_timer()

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def _grow(self, size: int) -> None:
        """Headers may arrive in a single piece; count them while they are parsed."""
        self._head += size
        if self._head > MAX_HEADERS:
            raise ValueError(TOO_LARGE)  # stops the parser, which then calls send_400_response

    def send_400_response(self, msg: str) -> None:
        if self._head > MAX_HEADERS:
            self._refuse(431, TOO_LARGE)
        else:
            self._refuse(400, "this is not a valid HTTP/1.1 request.")

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._in_head, self._bytes = False, 0
        self._heads += 1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._deadline = self.loop.call_later(self.timeout_s, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_timeout(self) -> None:
        if self._answering:
            self._start_timer()  # a pipelined request is read only after the current answer
        else:
            self._refuse(408, f"the request headers did not arrive within {self.timeout_s:g} s.")

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int, message: str) -> None:
        if not self._answering:
            body = json.dumps(make_error(status, message))
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        self.transport.close()
