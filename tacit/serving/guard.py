"""ASGI middleware in front of every app: authentication, size and time limits, and metrics. Plain ASGI adds little latency."""

from __future__ import annotations

import asyncio
import collections
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar, cast

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
from tacit.serving.settings import ServingSettings

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()
        reg = self._registry = CollectorRegistry()
        ProcessCollector(registry=reg)
        self.requests = Counter("tacit_requests", "answered requests", ("route", "status"), registry=reg)
        self.seconds = Histogram("tacit_request_seconds", "from request to answer", ("route",), buckets=SECONDS, registry=reg)
        self.turns = Counter("tacit_turns", "actions taken", ("module", "by"), registry=reg)
        self.tokens = Counter("tacit_tokens", "tokens of the model", ("module", "kind"), registry=reg)
        self.started = Counter("tacit_sessions_begun", "sessions begun", ("module",), registry=reg)
        self.ended = Counter("tacit_sessions_ended", "sessions over", ("module", "outcome"), registry=reg)
        self.rows = Histogram("tacit_batch_rows", "requests under way whenever the model goes on", buckets=ROWS, registry=reg)

    def add_gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        Gauge(f"tacit_{name}", meaning, registry=self._registry).set_function(value)

    def count_turn(self, module: str, read: int, written: int, by: str = "") -> None:
        """Tokens read and written, and an action by `by`."""
        if by:
            self.turns.labels(module, by).inc()
        self.tokens.labels(module, "read").inc(read)
        self.tokens.labels(module, "written").inc(written)

    def text(self) -> bytes:
        return generate_latest(self._registry)


Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
MAX_DISCARDED, REFUSED_S = 1 << 24, 2.0  # of a refused request's body: bytes to read, and seconds to keep reading
MAX_LARGE = 32  # bodies handled at once, in units of the largest allowed body; parsed JSON takes 30 times its size
PUBLIC_PATHS = ("/", "/health")  # readable without a token
CLIENT = "tacit.client"
SINGLE_HEADERS = (b"host", b"origin", b"authorization", b"content-length", b"transfer-encoding")
LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


class NamedRoute(Route):
    """A route that puts itself into the scope, so that metrics can name it; older versions of Starlette do not."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        match, fields = super().matches(scope)
        return match, {**fields, "route": self}


class Guard:
    def __init__(self, app: App, tokens: Mapping[str, str] | None, settings: ServingSettings, metrics: Metrics) -> None:
        """`tokens`: client -> token. None: only requests to a local host name from the server's own page are answered.

        The client's name is put into the scope (CLIENT).
        """
        self._app, self._metrics, self._max_bytes, self._handled = app, metrics, settings.request_bytes, 0
        self._clients = None if tokens is None else [(token.encode(), client) for client, token in tokens.items()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_time, status, started = time.perf_counter(), 500, False

        async def send_and_note_status(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
            await send(message)

        try:
            refusal, body, ended = self.check_headers(scope), bytearray(), False
            # Most clients read the answer only after sending the whole body, so a refused body is read up to a limit.
            with suppress(TimeoutError):
                async with asyncio.timeout(REFUSED_S if refusal else None):
                    size = 0
                    while not ended and size <= MAX_DISCARDED:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            status = 499
                            return
                        size, ended = size + len(message.get("body", b"")), not message.get("more_body")
                        if size > self._max_bytes:
                            refusal = refusal or (413, f"the request is too large; the limit is {self._max_bytes} bytes.")
                        if refusal is None and CLIENT in scope:  # public paths need no body
                            body += message["body"]
            if refusal is None and body and self._handled + len(body) > MAX_LARGE * self._max_bytes:
                refusal = 503, "too many large requests at once; try again later."
            if refusal is not None:
                await send_error(send_and_note_status, *refusal, close=not ended)
                return
            self._handled += (size := len(body))
            try:
                await self._app(scope, _replay_body(bytes(body), receive), send_and_note_status)
            finally:
                self._handled -= size
        except asyncio.CancelledError:  # uvicorn cancels running requests when the server stops
            if started:
                raise
            await send_error(send_and_note_status, 503, STOPPING)
        finally:
            route = scope.get("route")
            name = f"{scope['method']} {getattr(route, 'path', 'other')}"[:80] if route else "other"
            self._metrics.requests.labels(name, str(status)).inc()
            self._metrics.seconds.labels(name).observe(time.perf_counter() - start_time)

    def check_headers(self, scope: Any) -> tuple[int, str] | None:
        """(status, message) if the request is refused, else None."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in SINGLE_HEADERS:
                return 400, f"the header {name.decode()} is sent twice."
            headers[name] = value
        if self._clients is None:
            host = headers.get(b"host", b"").decode("latin-1")
            if not LOCAL_HOST.fullmatch(host):
                return 403, f"without a token only local requests are answered, not requests to host {host[:80]!r}."
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin and origin != f"{scope['scheme']}://{host}":
                return 403, f"without a token only this server's own page is answered, not a page of {origin[:80]!r}."
            scope[CLIENT] = ""
        elif scope["path"] not in PUBLIC_PATHS:
            kind, _, token = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not token:
                return 401, "a token is needed: send the header `Authorization: Bearer TOKEN`."
            matching = [client for expected, client in self._clients if hmac.compare_digest(token.strip(), expected)]
            if not matching:
                return 401, "the token is wrong."
            scope[CLIENT] = matching[0]
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 12 or int(length) > MAX_DISCARDED:
            return 413, f"the request has {length.decode('latin-1')[:20]} bytes; the limit is {self._max_bytes} bytes."
        return None


def _replay_body(body: bytes, receive: Any) -> Any:
    """A `receive` that first returns the body that was already read."""
    replayed = False

    async def receive_again() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def send_error(send: Any, status: int, message: str, close: bool = False) -> None:
    body = json.dumps(make_error(status, message)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def make_error(status: int, message: str) -> dict[str, Any]:
    """The body of every error, in OpenAI's format, so that its clients show the message."""
    kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


# Limits per connection. They apply before authentication.

MAX_HEADERS, MAX_FIELDS, MAX_PIECES = 65_536, 256, 512  # bytes and fields of a head; pieces (chunks) of a body
MAX_UNREAD = 1 << 26  # bytes of answers that clients have not read yet, over all connections
OTHER_FILES = 96  # open files reserved for other uses than connections: 32 listening sockets, worlds, weights


def make_connection_class(settings: ServingSettings) -> type[HttpToolsProtocol]:
    class Bounded(BoundedConnection):
        timeout_s, client_limit, limit = settings.answer_s, settings.client_connections, max_connections(settings.connections)
        counts: ClassVar[collections.Counter[str]] = collections.Counter()
        queue: ClassVar[dict[BoundedConnection, None]] = {}

    return Bounded


def max_connections(requested: int) -> int:
    """The number of connections that stays below the limit of open files. At that limit the server could neither accept nor
    refuse a connection, and would spin."""
    try:
        import resource
    except ImportError:
        return requested
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return requested if files == resource.RLIM_INFINITY else max(1, min(requested, files - OTHER_FILES))


class BoundedConnection(HttpToolsProtocol):
    """One request at a time, which must arrive within `timeout_s` and whose answer must be read within `timeout_s`.

    At the limit of connections a new one takes the place of the one that has waited longest for its client, first among
    those that never sent a valid token.
    """

    timeout_s = 60.0
    limit, client_limit = 2048, 512
    counts: ClassVar[collections.Counter[str]] = collections.Counter()  # open connections by address
    queue: ClassVar[dict[BoundedConnection, None]] = {}
    """open connections by the time of their last answer, earliest first, so that a flood of new ones needs no search"""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head, self._head_bytes, self._pieces, self._authenticated = True, 0, 0, False
        self._reading: float | None = self.loop.time()
        """time since which the current request is awaited; None: no request, or it is complete"""
        self._writing: float | None = None  # time since which the client has not read its answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.counts[self._address] += 1
        self.queue[self] = None
        for count, limit, same_address in (
            (self.counts[self._address], self.client_limit, True),
            (len(self.connections), self.limit, False),
        ):
            if count <= limit:
                continue
            oldest: BoundedConnection | None = None
            for other in self.queue:
                waits_for_us = other._reading is None and other.answering
                if other is self or (same_address and other._address != self._address) or waits_for_us:
                    continue
                if oldest is None or not other._authenticated:
                    oldest = other
                if not other._authenticated:
                    break
            if oldest is None:
                self.refuse(503, f"{limit} connections are open, which is the limit; try again later.")
                return
            oldest.transport.abort()
            self.connections.discard(oldest)
            del self.queue[oldest]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.queue.pop(self, None)
        self.counts[self._address] -= 1
        if not self.counts[self._address]:
            del self.counts[self._address]

    def check(self) -> None:
        """Close the connection if its client takes too long. Call this regularly."""
        now = self.loop.time()
        unread = self.transport.get_write_buffer_size() > 0
        self._writing = (self._writing or now) if unread else None
        if self._writing is not None and now - self._writing > self.timeout_s:
            self.transport.abort()
        elif self._reading is not None and now - self._reading > self.timeout_s:
            self.refuse(408, f"the request did not arrive within {self.timeout_s:g} s.")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._reading is None and not self.answering:
            self._reading = self.loop.time()
        self._head_bytes += len(data) if self._in_head else 0
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEADERS:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        if self.answering:
            raise ValueError("a request before the last one was answered")  # stops the parser: send_400_response
        self._pieces = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Limit the number of header fields and pieces: each costs a Python call and an object, however few bytes it has."""
        self._count_piece(MAX_FIELDS)
        if self._in_head:  # else a trailer, which must not be taken for a header
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._count_piece(MAX_PIECES)
        super().on_body(body)

    def _count_piece(self, limit: int) -> None:
        self._pieces += 1
        if self._pieces > limit:
            self.refuse(431, f"the request has more than {limit} header fields or pieces of a body.")
            raise ValueError("too many pieces")

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers) > MAX_HEADERS:
            self._refuse_headers()
            raise ValueError("headers are too large")
        if not self.url.startswith(b"/"):  # the host of `GET http://evil.com/` would override the Host header
            self.refuse(400, "the target of a request must be a path.")
            raise ValueError("not a path")
        self._in_head, self._head_bytes, self._pieces = False, 0, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._reading = True, None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self.answering and self._reading is None:  # a pipelined request; the client repeats it on another connection
            self.cycle.keep_alive = False
            self.flow.pause_reading()
        else:
            self.refuse(400, "this is not a valid HTTP/1.1 request.")

    def on_response_complete(self) -> None:
        self._authenticated = self._authenticated or CLIENT in self.cycle.scope
        if self.queue.pop(self, self) is None:  # not one that was dropped
            self.queue[self] = None
        if self._reading is not None:  # the rest of a refused request is not read
            self.transport.close()
        super().on_response_complete()
        if self.flow.write_paused:
            self.flow.pause_reading()  # until the client has read this answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self._writing or self.loop.time()
        connections = cast(list[BoundedConnection], list(self.connections))
        writing = [other for other in connections if other._writing is not None]
        size = sum(other.transport.get_write_buffer_size() for other in writing)
        for other in sorted(writing, key=lambda other: other._writing or 0.0):
            if size <= MAX_UNREAD:
                break
            size -= other.transport.get_write_buffer_size()
            other.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flow.resume_reading()

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse_headers(self) -> None:
        self.refuse(431, f"the request headers are too large; the limit is {MAX_HEADERS} bytes.")

    def refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if not (self.answering and self.cycle.response_started):
            body = json.dumps(make_error(status, message))
            head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        self.transport.close()
