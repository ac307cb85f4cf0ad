"""Before anything else: who asks, how much they send, and what is counted. Plain ASGI, since every turn passes here."""

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

# What is counted, for Prometheus.

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
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

    def read_off(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A number that is somebody else's to keep."""
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
HEARD_OUT = 1 << 24
"""bytes of a request that is too large which are still waited for"""
OPEN = ("/", "/health")
"""what may be read without a token: a page that knows nothing by itself, and whether somebody is here"""


class Way(Route):
    """A route that says which one it is, so that requests can be counted by it; Starlette's own say so only lately."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


class Guard:
    def __init__(self, app: App, token: str | None, settings: ServingSettings, metrics: Metrics) -> None:
        """Without a token only names of this machine are answered, and no page but ours: no other site's can ask."""
        self._app, self._token, self._metrics = app, token, metrics
        self._most, self._patience_s = settings.request_bytes, settings.answer_s

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
            if (refusal := self._refusal(scope, headers)) is not None:
                await answer(sending, *refusal)
                return
            try:
                async with asyncio.timeout(self._patience_s):
                    body = await self._whole(receive)
            except TimeoutError:
                await answer(sending, 408, f"the request did not arrive within {self._patience_s:g} s.")
                return
            if body is None:
                await answer(sending, 413, f"the request is too large; {self._most} bytes are read here at most.")
                return
            await self._app(scope, _again(body, receive), sending)
        except asyncio.CancelledError:  # its time is over: uvicorn cancels what is under way when it has waited long enough
            if begun:
                raise
            await answer(sending, 503, STOPPING)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._metrics.request(f"{scope['method']} {path}"[:80] if route else "other", status, time.perf_counter() - began)

    async def _whole(self, receive: Any) -> bytes | None:
        """The body; None where it is too large, whatever the headers said. Somewhat too large is read to its end and forgotten:
        most clients look for an answer only once they have sent everything."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            piece = message.get("body", b"")
            size += len(piece)
            if size <= self._most:
                pieces.append(piece)
            if not message.get("more_body") or size > HEARD_OUT:
                return b"".join(pieces) if size <= self._most else None

    def _refusal(self, scope: Any, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        if self._token is None:
            host = headers.get(b"host", b"").decode("latin-1")
            if _without_port(host) not in LOOPBACK:
                return 403, f"without a token only this machine is answered, and the request is for host {host[:80]!r}."
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin and origin.partition("://")[2] != host:
                return 403, f"a page of {origin[:80]!r} asks, and without a token only this server's own page is answered."
        elif scope["path"] not in OPEN:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not given:
                return 401, "a token is needed: send the header `Authorization: Bearer TOKEN`."
            if not hmac.compare_digest(given.strip(), self._token.encode()):
                return 401, "this token is not the right one."
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > HEARD_OUT:
            return 413, f"the request has {length.decode('latin-1')[:20]} bytes; {self._most} are read here at most."
        return None


def _again(body: bytes, receive: Any) -> Any:
    """What was read, once more; then whatever comes next."""
    told = False

    async def receiving() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


async def answer(send: Any, status: int, message: str) -> None:
    body = json.dumps(problem(status, message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):  # what is still on its way is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def problem(status: int, message: str) -> dict[str, Any]:
    """Every refusal has this shape, which is OpenAI's, so that its clients show the message."""
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


# One connection, before any request: how long its head may be, how long it may take, and how many there may be at once.
#
# Who asks is known only when the head of a request is there, so whatever comes before that anybody can send.

LONGEST_HEAD = 65_536
"""bytes"""
TOO_LARGE = f"the head of the request is too large; {LONGEST_HEAD} bytes are read here at most."
MOST = 2048
"""connections at once"""
OTHER_FILES = 64
"""of the files that a process may have open, so many are for anything but connections"""


def connections_for(settings: ServingSettings) -> type[HttpToolsProtocol]:
    class Bounded(Connection):
        patience_s, most = settings.answer_s, most_connections()

    return Bounded


def most_connections() -> int:
    """Where no file is left to open, a connection is neither taken nor refused, and the server does nothing but try."""
    try:
        import resource
    except ImportError:
        return MOST
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files - OTHER_FILES))


class Connection(HttpToolsProtocol):
    patience_s = 60.0
    most = MOST

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head, self._heads, self._bytes, self._head = True, 0, 0, 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._refuse(503, f"{self.most} connections are open, and no more may be; come back later.")
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        heads, in_head = self._heads, self._in_head
        super().data_received(data)
        if self._in_head and self._heads == heads and not self.transport.is_closing():
            self._bytes += len(data) if in_head else 0  # the end of a body is no head
            if self._bytes > LONGEST_HEAD:
                self._refuse(431, TOO_LARGE)
            elif self._deadline is None:
                self._wait()

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
        """A head may come in one piece with its end, and is too large all the same."""
        self._head += size
        if self._head > LONGEST_HEAD:
            raise ValueError(TOO_LARGE)  # the parser reads no further, and the request is refused as one that it cannot read

    def send_400_response(self, msg: str) -> None:
        if self._head > LONGEST_HEAD:
            self._refuse(431, TOO_LARGE)
        else:
            self._refuse(400, "this is no request of HTTP/1.1 that can be read.")

    def on_headers_complete(self) -> None:
        self._wait_no_more()
        self._in_head, self._bytes = False, 0
        self._heads += 1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(self.patience_s, self._too_late)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        if self._answering:
            self._wait()  # the next request has begun while this one is answered, and is read when it has been
        else:
            self._refuse(408, f"the head of the request did not arrive within {self.patience_s:g} s.")

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int, message: str) -> None:
        if not self._answering:
            body = json.dumps(problem(status, message))
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        self.transport.close()
