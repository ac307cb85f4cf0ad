"""One chat completion over HTTP, with the patience a shared server needs.

What can go wrong falls in three kinds, and only the first is the model's own doing:

    Broken        the server answered, but with nothing to read: not JSON, no choices, a prompt it refuses (400, 413, 422), or a
                  failure of its own that outlasts every retry. One turn is lost; whoever asked goes on.
    TacitError    it will never answer: a wrong key, a wrong address, a model it does not have, nobody listening. Work stops.
    (retried)     too many requests (429), 5xx, a timeout, a connection that breaks: asked again after a growing pause.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.seeds import derive

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
LONGEST_PAUSE_S = 60.0
PATIENCE = 20
"""requests that may fail one after another, each after all its retries, before the endpoint is taken to be down"""
NEVER = {401: "refuses the key", 403: "refuses the key", 404: "does not know this address or model", 405: "is no such endpoint"}
OWN_FAULT = (400, 413, 422)
"""statuses that say something about this one prompt, not about the endpoint"""


class Broken(Exception):
    """An answer that cannot be used."""


@dataclass(frozen=True)
class Answer:
    text: str
    finished: bool
    """False where it was cut off at the longest completion"""
    prompt_tokens: int
    """as the server counts them; 0 where it does not say"""
    completion_tokens: int


@dataclass
class ChatClient:
    """`POST {url}/chat/completions`. `url` is the address up to and including the version, e.g. `http://localhost:8000/v1`."""

    url: str
    model: str
    key_variable: str = DEFAULT_KEY_VARIABLE
    """environment variable that holds the key; a server that wants none is asked without one"""
    timeout_s: float = 120.0
    retries: int = 5
    pause_s: float = 1.0
    """before the first retry; doubled each time"""
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise TacitError(f"--endpoint {self.url!r} must begin with http:// or https://, such as http://localhost:8000/v1.")
        if not self.model:
            raise TacitError("an endpoint serves models by name: add --model NAME.")
        self.url = self.url.rstrip("/").removesuffix("/chat/completions")
        self._failures, self._lock = 0, threading.Lock()

    def complete(self, messages: Sequence[Mapping[str, str]], seed: int = 0, **options: Any) -> Answer:
        """The answer to a conversation. Safe to call from several threads."""
        body = {"model": self.model, "messages": list(messages), "seed": seed % (1 << 31), **options}
        reason = ""
        for attempt in range(self.retries + 1):
            try:
                answer = read_answer(self._post(body))
                self._count(failed=False)
                return answer
            except _Again as error:
                reason = str(error)
                if attempt < self.retries:
                    self.sleep(min(LONGEST_PAUSE_S, error.after_s or self._pause(attempt, seed)))
                elif error.nobody_there:
                    raise TacitError(f"nobody answers at {self.url}: {reason}. Is the server running?") from error
        self._count(failed=True, reason=reason)
        raise Broken(reason)

    def _post(self, body: Mapping[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = os.environ.get(self.key_variable, "")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise _Again(f"no answer within {self.timeout_s:g} s") from error
            nobody = isinstance(error.reason, ConnectionRefusedError | socket.gaierror | ssl.SSLError)
            raise _Again(str(error.reason), nobody_there=nobody) from error
        except TimeoutError as error:
            raise _Again(f"no answer within {self.timeout_s:g} s") from error
        except (http.client.HTTPException, ConnectionError) as error:
            raise _Again(f"the connection broke: {error}") from error

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        said = _said(error)
        if error.code in NEVER:
            key = f" (key from ${self.key_variable})" if error.code in (401, 403) else f" (model {self.model!r})"
            return TacitError(f"{self.url} {NEVER[error.code]}{key}: {error.code} {said}")
        if error.code in OWN_FAULT:
            return Broken(f"{error.code} {said}")
        after = error.headers.get("Retry-After", "") if error.headers else ""
        return _Again(f"{error.code} {said}", after_s=float(after) if after.replace(".", "", 1).isdigit() else 0.0)

    def _pause(self, attempt: int, seed: int) -> float:
        """Doubled each time, and up to half as much again: requests that failed together should not come back together."""
        return self.pause_s * 2**attempt * (1 + (derive(seed, "pause", attempt) % 1000) / 2000)

    def _count(self, failed: bool, reason: str = "") -> None:
        with self._lock:
            self._failures = self._failures + 1 if failed else 0
            if self._failures >= PATIENCE:
                raise TacitError(
                    f"{self.url} failed {self._failures} requests in a row, each after {self.retries} retries: {reason}."
                )


class _Again(Exception):
    """Worth another try."""

    def __init__(self, reason: str, after_s: float = 0.0, nobody_there: bool = False) -> None:
        super().__init__(reason)
        self.after_s, self.nobody_there = after_s, nobody_there


def read_answer(raw: bytes) -> Answer:
    """What a chat completion says. Raises Broken, with the reason, where it says nothing."""
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise Broken(f"the answer is not JSON: {raw[:80]!r}") from error
    try:
        choice = document["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise Broken(f"the answer has no choices[0].message.content: {raw[:80]!r}") from error
    if not isinstance(text, str):
        raise Broken(f"the answer's content is {type(text).__name__}, not text")
    usage = document.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Answer(
        text=text,
        finished=choice.get("finish_reason") != "length",
        prompt_tokens=_whole(usage.get("prompt_tokens")),
        completion_tokens=_whole(usage.get("completion_tokens")),
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _said(error: urllib.error.HTTPError) -> str:
    """The server's own words, from `{"error": {"message": …}}` or whatever else it sent."""
    try:
        text = error.read(2000).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return str(error.reason)
    try:
        inner = json.loads(text)["error"]
        return str(inner["message"] if isinstance(inner, dict) else inner)
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())[:200] or str(error.reason)
