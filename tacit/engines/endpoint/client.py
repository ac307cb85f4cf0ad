"""Chat completions and embeddings over HTTP with the `openai` client, and how errors are handled.

    BrokenAnswer  an unusable answer: not JSON, no choices, a refused prompt (400, 413, 422), a server error after all retries.
                  One turn is lost; the run continues.
    TacitError    a permanent error: wrong key, address or model, or no server. The run stops.
    Passing       429, 5xx, timeouts, broken connections: retried with growing pauses.

The first request to an endpoint is retried for a few seconds only, whatever Retry-After says, and not at all after a timeout.
`trouble` tells what is being retried.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import numpy as np

from tacit.core.bounds import AtLeastOne, Positive
from tacit.core.chat import Call
from tacit.core.errors import TacitError, install_command


def text_of(message: Mapping[str, Any]) -> str | None:
    """The text of an answer, else its refusal, else its unreadable tool calls verbatim; None without any of these."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str)) if parts else None
    told = whole(content) if isinstance(content, str) else None
    refusal = message.get("refusal")
    if told or (isinstance(refusal, str) and refusal):
        return told or whole(str(refusal))
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or calls_of(message):
        return told
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)]
    arguments = [function.get("arguments") for function in functions if isinstance(function, Mapping)]
    return whole("\n".join(text if isinstance(text, str) else json.dumps(text) for text in arguments)) or told


def calls_of(message: Mapping[str, Any]) -> tuple[Call, ...]:
    """The readable tool calls of an answer."""
    found = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, Sequence) else ():
        try:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (KeyError, TypeError, ValueError):
            continue
        if isinstance(name, str) and isinstance(arguments, Mapping):
            found.append(Call(whole(name), json.loads(whole(json.dumps(arguments, ensure_ascii=False)))))
    return tuple(found)


def thought_of(message: Mapping[str, Any]) -> str:
    """The reasoning, if the server returns it separately, under either of its two names."""
    found = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((whole(text.strip()) for text in found if isinstance(text, str) and text.strip()), "")


def whole(text: str) -> str:
    """The text with a question mark for each half surrogate pair, which JSON allows and files do not."""
    return text.encode("utf-8", "replace").decode()


def spoken(text: str, calls: Sequence[Call], thought: str) -> str:
    """An answer as a local model would write it: thought, text, tool calls."""
    before = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return before + "\n".join(part for part in (text.strip(), *(call.text() for call in calls)) if part)


@dataclass(frozen=True)
class ChatSettings:
    """Settings of an OpenAI-compatible endpoint."""

    url: str = "http://localhost:8000/v1"
    """its address, up to and including the version"""
    key_variable: str = "OPENAI_API_KEY"
    """environment variable that holds the key; a server that wants none is asked without one"""
    concurrency: AtLeastOne = 16
    """concurrent requests"""
    timeout_s: Positive = 120.0
    """seconds that one answer may take"""


Read = TypeVar("Read")
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
PATIENCE = 20
"""consecutive failed requests, each after all its retries, after which the endpoint counts as down"""
FIRST_RETRIES = 3
"""of a request to an endpoint that has never answered"""
FIRST_WAIT_S = 10.0
"""sum of the pauses of such a request, whatever Retry-After says"""
PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
"""the first and the longest pause; each is twice the one before"""
NEVER = {401: "refuses the key", 403: "refuses the key", 404: "does not know this address or model", 405: "is no such endpoint"}
OWN_FAULT = (400, 413, 422)
"""statuses caused by this one prompt, not by the endpoint"""


class BrokenAnswer(Exception):
    """An answer that cannot be used."""


class Passing(Exception):
    """A temporary failure. `wait_s`: the server's Retry-After, or 0."""

    def __init__(self, reason: str, wait_s: float = 0.0, timed_out: bool = False, nobody: bool = False) -> None:
        super().__init__(reason)
        self.wait_s, self.timed_out, self.nobody = wait_s, timed_out, nobody


@dataclass(frozen=True)
class Answer:
    text: str
    finished: bool
    """False if it was cut off at the longest completion"""
    prompt_tokens: int
    """as counted by the server; 0 if it does not report them"""
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
    """for one answer, to its last byte; looked at whenever some of it comes"""
    slow: ClassVar[str] = "a model that is still loading, or that writes long answers, wants a longer --timeout"
    """what is said of a server that has not answered in time, ever"""
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
            raise TacitError(f"endpoints are asked through the openai package: {install_command('endpoints')}.") from error
        self.url = self.url.rstrip("/").removesuffix("/chat/completions")
        if not urlsplit(self.url).path:
            self.url += "/v1"
        key = os.environ.get(self.key_variable, "")
        self._headers = {} if key else {"Authorization": openai.Omit()}
        self._api = openai.OpenAI(base_url=self.url, api_key=key or "none", timeout=self.timeout_s, max_retries=0)
        self._failures, self._answered, self._lock = 0, False, threading.Lock()
        self.trouble = ""
        """what is being retried, and why; empty where all is well"""

    def complete(self, messages: Sequence[Mapping[str, Any]], seed: int = 0, **options: Any) -> Answer:
        """The answer to a conversation. Safe to call from several threads."""
        body = {"model": self.model, "messages": list(messages), "seed": seed % (1 << 31), "extra_body": options}
        return self._send_with_retries(self._api.chat.completions.with_streaming_response.create, body, read_answer)

    def _send_with_retries(self, send: Callable[..., Any], body: Mapping[str, Any], read: Callable[[bytes], Read]) -> Read:
        """What `read` makes of the answer to a request, which is sent again as long as its failure may pass."""
        tried, waited_s = 0, 0.0
        while True:
            try:
                answer = read(self._ask(send, body))
            except Passing as trouble:
                tried += 1
                pause_s = trouble.wait_s or min(PAUSE_S * 2 ** (tried - 1), LONGEST_PAUSE_S)
                if not self._answered:
                    pause_s = min(pause_s, FIRST_WAIT_S - waited_s)
                most = self.retries
                if not self._answered:
                    asked = math.ceil(FIRST_WAIT_S / trouble.wait_s) if trouble.wait_s else FIRST_RETRIES
                    most = 0 if trouble.timed_out and not trouble.wait_s else min(asked, most)
                if tried > most or pause_s <= 0:
                    raise self._given_up(trouble, tried) from trouble
                with self._lock:
                    self.trouble = f"{trouble}; asked again after {pause_s:.2g} s, {tried} of {most} times"
                time.sleep(pause_s)
                waited_s += pause_s
            except BrokenAnswer as unusable:
                raise self._unusable(unusable) from unusable
            else:
                with self._lock:
                    self._failures, self._answered, self.trouble = 0, True, ""
                return answer

    def _ask(self, send: Callable[..., Any], body: Mapping[str, Any]) -> bytes:
        """One request, and what its failure means."""
        import openai

        late_at = time.monotonic() + self.timeout_s
        try:
            with send(**body, extra_headers=self._headers) as response:
                return self._body(response.iter_bytes(), late_at)
        except openai.APIStatusError as error:
            said = f"{error.status_code} {_said(error.body) or error.response.reason_phrase}"
            if error.status_code in NEVER:
                key = f"none was sent: ${self.key_variable} is not set" if self._headers else f"key from ${self.key_variable}"
                about = key if error.status_code in (401, 403) else f"model {self.model!r}"
                raise TacitError(f"{self.url} {NEVER[error.status_code]} ({about}): {said}") from error
            if error.status_code in OWN_FAULT:
                raise BrokenAnswer(said) from error
            raise Passing(said, _asked_to_wait(error.response.headers)) from error
        except openai.APITimeoutError as error:
            raise self._late() from error
        except openai.APIConnectionError as error:
            reason = error.__cause__ or error
            nobody = type(reason).__name__ == "ConnectError"  # of the HTTP library, which is another in each version
            raise Passing(str(reason) if nobody else f"the connection broke: {reason}", nobody=nobody) from error

    def _body(self, parts: Iterator[bytes], late_at: float) -> bytes:
        """All of an answer, if it is there in time: the HTTP library's own timeout is for each silence between two parts."""
        body = bytearray()
        try:
            for part in parts:
                body += part
                if time.monotonic() > late_at:
                    raise self._late()
        except Passing:
            raise
        except Exception as error:  # of the HTTP library, which the client wraps only until the body begins
            raise self._late() if "Timeout" in type(error).__name__ else Passing(f"the connection broke: {error}") from error
        return bytes(body)

    def _late(self) -> Passing:
        return Passing(f"no answer within {self.timeout_s:g} s", timed_out=True)

    def _given_up(self, trouble: Passing, tried: int) -> Exception:
        if trouble.nobody:
            return TacitError(f"nobody answers at {self.url}: {trouble}. Is the server running?")
        if not self._answered:
            remedy = self.slow if trouble.timed_out else f"the first request failed {tried} times in a row"
            remedy += f", and it asks to be left alone for {trouble.wait_s:g} s" if trouble.wait_s else ""
            return TacitError(f"{self.url} has never answered: {trouble}; {remedy}.")
        with self._lock:
            self._failures += 1
            if self._failures < PATIENCE:
                return BrokenAnswer(str(trouble))
        return TacitError(f"{self.url} failed {PATIENCE} requests in a row, each after {tried - 1} retries: {trouble}.")

    def _unusable(self, unusable: BrokenAnswer) -> Exception:
        """An answer that says nothing costs one turn; where there has been no other, the endpoint is none."""
        with self._lock:
            self.trouble = f"an answer could not be used: {unusable}"
            self._failures += not self._answered
            if self._answered or self._failures < PATIENCE:
                return unusable
        return TacitError(f"none of the first {PATIENCE} answers of {self.url} could be used. The last: {unusable}")


def _read_json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise BrokenAnswer(f"the answer is not JSON: {raw[:80]!r}") from error


def read_answer(raw: bytes) -> Answer:
    """What a chat completion says. Cut-off thoughts, unreadable calls and refusals are the model's own answers."""
    document = _read_json(raw)
    try:
        choice = document["choices"][0]
        calls, thought, text = calls_of(choice["message"]), thought_of(choice["message"]), text_of(choice["message"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BrokenAnswer(f"the answer has no choices[0].message: {raw[:80]!r}") from error
    if text is None and not calls and not thought:
        raise BrokenAnswer("the answer's message has no text, no thought and no call")
    usage = document.get("usage")
    counts = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (n if isinstance(n, int) and n >= 0 else 0 for n in counts)
    return Answer(text or "", choice.get("finish_reason") != "length", prompt, completion, calls, thought)


def _said(body: object) -> str:
    """The server's own words, from `{"error": {"message": …}}` or whatever else it sent."""
    said = body.get("message", "") if isinstance(body, dict) else body
    return whole(" ".join(str(said or "").split())[:200])


def _asked_to_wait(headers: Mapping[str, str]) -> float:
    """Seconds, of a Retry-After that gives them and is no longer than a minute."""
    try:
        seconds = float(headers.get("retry-after", 0))
    except ValueError:
        return 0.0
    return seconds if 0 < seconds <= 60 else 0.0


BATCH = 32
"""texts in one request; what servers take by default"""


class EmbeddingClient(ChatClient):
    """N texts -> [N, D], by `POST {url}/embeddings`. Asks for one vector when it is made; whatever outlasts the retries is
    an error."""

    slow: ClassVar[str] = "is the model still loading?"

    def __init__(self, url: str, model: str, key_variable: str = DEFAULT_KEY_VARIABLE, retries: int = 6) -> None:
        if not url.startswith(("http://", "https://")):
            raise TacitError(f"--embedding-url {url!r} must begin with http:// or https://, such as http://localhost:8000/v1.")
        if not model:
            raise TacitError("an endpoint serves models by name: add --encoder NAME.")
        super().__init__(url.rstrip("/").removesuffix("/embeddings"), model, key_variable, retries=retries)
        self._dimensions = 0
        self(["any text"])

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        found = [self._vectors(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        for vectors_ND in found:
            self._dimensions = self._dimensions or vectors_ND.shape[1]
            if vectors_ND.shape[1] != self._dimensions:
                raise TacitError(
                    f"{self.url} sends vectors of {vectors_ND.shape[1]} dimensions now, and sent {self._dimensions} "
                    f"before: is {self.model!r} another model now?"
                )
        return np.concatenate(found) if found else np.zeros((0, self._dimensions), np.float32)

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        send = self._api.embeddings.with_streaming_response.create
        try:
            return self._send_with_retries(send, body, lambda raw: read_vectors(raw, len(texts)))
        except BrokenAnswer as unusable:
            what = f"{self.url} sends no vectors for {len(texts)} texts (model {self.model!r}): {unusable}"
            raise TacitError(what) from unusable


def read_vectors(raw: bytes, count: int) -> np.ndarray:
    """[count, D], by the index that each has in the answer."""
    document = _read_json(raw)
    try:
        told = {item["index"]: item["embedding"] for item in document["data"]}
        vectors_ND = np.array([told[i] for i in range(count)], np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenAnswer(f"the answer has no data[0..{count - 1}].embedding of one size: {raw[:80]!r}") from error
    if vectors_ND.ndim != 2 or not vectors_ND.size or not np.isfinite(vectors_ND).all():
        raise BrokenAnswer(f"the answer's vectors are not finite numbers: {raw[:80]!r}")
    return vectors_ND
