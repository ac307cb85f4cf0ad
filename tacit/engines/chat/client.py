"""One chat completion over HTTP: the `openai` client, and what its errors mean here.

What can go wrong falls in three kinds, and only the first is the model's own doing:

    Broken        the server answered, but with nothing to read: not JSON, no choices, a prompt it refuses (400, 413, 422), or a
                  failure of its own that outlasts every retry. One turn is lost; whoever asked goes on.
    TacitError    it will never answer: a wrong key, a wrong address, a model it does not have, nobody listening. Work stops.
    (retried)     too many requests (429), 5xx, a timeout, a connection that breaks: asked again after a growing pause.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tacit.core.chat import Call
from tacit.core.errors import TacitError, install
from tacit.engines.chat.messages import calls_of, thought_of

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
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
    calls: tuple[Call, ...] = ()
    """of tools"""
    thought: str = ""
    """where the server keeps it apart"""


@dataclass
class ChatClient:
    """`POST {url}/chat/completions`, with an address such as `http://localhost:8000/v1`; a bare host is asked under `/v1`."""

    url: str
    model: str
    key_variable: str = DEFAULT_KEY_VARIABLE
    """environment variable that holds the key; a server that wants none is asked without one"""
    timeout_s: float = 120.0
    retries: int = 6
    """half a second after the first failure, then twice as long each time, up to 8 s; or as long as the server says"""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise TacitError(f"--endpoint {self.url!r} must begin with http:// or https://, such as http://localhost:8000/v1.")
        if not self.model:
            raise TacitError("an endpoint serves models by name: add --model NAME.")
        try:
            import openai
        except ImportError as error:
            raise TacitError(f"endpoints are asked through the openai package: {install('endpoints')}.") from error
        self.url = self.url.rstrip("/").removesuffix("/chat/completions")
        if not urlsplit(self.url).path:
            self.url += "/v1"
        key = os.environ.get(self.key_variable, "")
        self._headers = {} if key else {"Authorization": openai.Omit()}
        self._api = openai.OpenAI(
            base_url=self.url, api_key=key or "none", timeout=self.timeout_s, max_retries=self.retries
        ).chat.completions.with_raw_response
        self._failures, self._lock = 0, threading.Lock()

    def complete(self, messages: Sequence[Mapping[str, Any]], seed: int = 0, **options: Any) -> Answer:
        """The answer to a conversation. Safe to call from several threads."""
        import openai

        body: dict[str, Any] = {"model": self.model, "messages": list(messages), "seed": seed % (1 << 31)}
        try:
            response = self._api.create(**body, extra_body=options, extra_headers=self._headers)
        except openai.APIStatusError as error:
            raise self._refused(error.status_code, _said(error.body) or error.response.reason_phrase) from error
        except openai.APITimeoutError as error:
            raise self._failed(f"no answer within {self.timeout_s:g} s") from error
        except openai.APIConnectionError as error:
            if type(error.__cause__).__name__ == "ConnectError":  # of the HTTP library, which is another in each version
                raise TacitError(f"nobody answers at {self.url}: {error.__cause__}. Is the server running?") from error
            raise self._failed(f"the connection broke: {error.__cause__ or error}") from error
        answer = read_answer(response.http_response.content)
        with self._lock:
            self._failures = 0
        return answer

    def _refused(self, status: int, said: str) -> Exception:
        if status in NEVER:
            about = f"key from ${self.key_variable}" if status in (401, 403) else f"model {self.model!r}"
            return TacitError(f"{self.url} {NEVER[status]} ({about}): {status} {said}")
        return Broken(f"{status} {said}") if status in OWN_FAULT else self._failed(f"{status} {said}")

    def _failed(self, reason: str) -> Exception:
        with self._lock:
            self._failures += 1
            if self._failures < PATIENCE:
                return Broken(reason)
        return TacitError(f"{self.url} failed {PATIENCE} requests in a row, each after {self.retries} retries: {reason}.")


def read_answer(raw: bytes) -> Answer:
    """What a chat completion says. Raises Broken, with the reason, where it says nothing."""
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise Broken(f"the answer is not JSON: {raw[:80]!r}") from error
    try:
        choice = document["choices"][0]
        calls, thought = calls_of(choice["message"]), thought_of(choice["message"])
        text = choice["message"].get("content") or "" if calls else choice["message"]["content"]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Broken(f"the answer has no choices[0].message.content: {raw[:80]!r}") from error
    if not isinstance(text, str):
        raise Broken(f"the answer's content is {type(text).__name__}, not text")
    usage = document.get("usage")
    counts = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (n if isinstance(n, int) and n >= 0 else 0 for n in counts)
    return Answer(text, choice.get("finish_reason") != "length", prompt, completion, calls, thought)


def _said(body: object) -> str:
    """The server's own words, from `{"error": {"message": …}}` or whatever else it sent."""
    said = body.get("message", "") if isinstance(body, dict) else body
    return " ".join(str(said or "").split())[:200]
