"""Models behind an OpenAI-compatible HTTP endpoint: a client with retries, for chat completions and embeddings, and a policy
that can only sample. Errors of the client:

    BrokenAnswer    an unusable answer: not JSON, no choices, a refused prompt (400, 413, 422), a server error after all
                    retries. One turn is lost; the run continues.
    TacitError      a permanent error: wrong key, address or model, or no server. The run stops.
    TemporaryError  429, 5xx, timeouts, broken connections: retried with exponential backoff.

Until an endpoint has answered once, requests are retried for a few seconds only, and not at all after a timeout. `trouble`
describes the current retry.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import numpy as np

from tacit.core.bounds import AtLeastOne, Positive
from tacit.core.chat import Call, Chat, Message
from tacit.core.errors import TacitError, install_command
from tacit.core.protocols import PolicyHooks, Request, Sampling, run_requests
from tacit.core.types import Completion, Finish, HiddenState, Trajectory


def text_of(message: Mapping[str, Any]) -> str | None:
    """The text of an answer, else its refusal, else its unreadable tool calls verbatim; None without any of these."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str)) if parts else None
    text = replace_surrogates(content) if isinstance(content, str) else None
    refusal = message.get("refusal")
    if text or (isinstance(refusal, str) and refusal):
        return text or replace_surrogates(str(refusal))
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or calls_of(message):
        return text
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)]
    arguments = [function.get("arguments") for function in functions if isinstance(function, Mapping)]
    return replace_surrogates("\n".join(one if isinstance(one, str) else json.dumps(one) for one in arguments)) or text


def calls_of(message: Mapping[str, Any]) -> tuple[Call, ...]:
    """The readable tool calls of an answer."""
    parsed = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, Sequence) else ():
        try:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (KeyError, TypeError, ValueError):
            continue
        if isinstance(name, str) and isinstance(arguments, Mapping):
            parsed.append(
                Call(replace_surrogates(name), json.loads(replace_surrogates(json.dumps(arguments, ensure_ascii=False))))
            )
    return tuple(parsed)


def thought_of(message: Mapping[str, Any]) -> str:
    """The reasoning, if the server returns it separately as `reasoning_content` or `reasoning`; else empty."""
    texts = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((replace_surrogates(text.strip()) for text in texts if isinstance(text, str) and text.strip()), "")


def replace_surrogates(text: str) -> str:
    """The text with `?` for each lone surrogate, which JSON allows but UTF-8 files do not."""
    return text.encode("utf-8", "replace").decode()


def format_answer(text: str, calls: Sequence[Call], thought: str) -> str:
    """An answer in the format of a local model: thought, text, tool calls."""
    before = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    return before + "\n".join(part for part in (text.strip(), *(call.text() for call in calls)) if part)


@dataclass(frozen=True)
class ChatSettings:
    """Settings of an OpenAI-compatible endpoint."""

    url: str = "http://localhost:8000/v1"
    """base URL, including the version: http://HOST:PORT/v1"""
    key_variable: str = "OPENAI_API_KEY"
    """environment variable with the API key; if it is unset, no key is sent"""
    concurrency: AtLeastOne = 16
    """concurrent requests"""
    timeout_s: Positive = 120.0
    """maximum seconds for one answer"""


Read = TypeVar("Read")
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
PATIENCE = 20  # consecutive failed requests, each after all its retries, after which the run stops
FIRST_RETRIES = 3  # retries of a request to an endpoint that has never answered
FIRST_WAIT_S = 10.0  # maximum total pause of such a request, even if Retry-After is longer
PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0  # the first and the longest pause, in seconds; pauses double
PERMANENT = {401: "refuses the key", 403: "refuses the key", 404: "has no such path or model", 405: "is not a chat endpoint"}
PROMPT_ERRORS = (400, 413, 422)  # statuses caused by this prompt, not by the endpoint


class BrokenAnswer(Exception):
    """An answer that cannot be used."""


class TemporaryError(Exception):
    """A failure worth a retry. `wait_s`: the server's Retry-After, or 0. `nobody`: no server accepted the connection."""

    def __init__(self, reason: str, wait_s: float = 0.0, timed_out: bool = False, nobody: bool = False) -> None:
        super().__init__(reason)
        self.wait_s, self.timed_out, self.nobody = wait_s, timed_out, nobody


@dataclass(frozen=True)
class Answer:
    text: str
    finished: bool  # False if it was truncated at the maximum length
    prompt_tokens: int  # as counted by the server; 0 if it does not report them
    completion_tokens: int
    calls: tuple[Call, ...] = ()  # tool calls
    thought: str = ""  # reasoning, if the server returns it separately


@dataclass
class ChatClient:
    """`POST {url}/chat/completions`, with a base URL such as `http://localhost:8000/v1`; a URL without path gets `/v1`."""

    url: str
    model: str
    key_variable: str = DEFAULT_KEY_VARIABLE  # environment variable with the API key; if it is unset, no key is sent
    timeout_s: float = 120.0  # maximum seconds for a complete answer; checked whenever a part of it arrives
    slow: ClassVar[str] = "if the model is still loading or writes long answers, use a longer --timeout"
    """hint if the first request times out"""
    retries: int = 6
    """retries of a request, after pauses that double from 0.5 s to 8 s, or after the server's Retry-After"""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise TacitError(f"--endpoint {self.url!r} must begin with http:// or https://, such as http://localhost:8000/v1.")
        if not self.model:
            raise TacitError("an endpoint needs the name of a model: add --model NAME.")
        try:
            import openai
        except ImportError as error:
            raise TacitError(
                f"endpoints need the openai package, which is not installed: {install_command('endpoints')}."
            ) from error
        self.url = self.url.rstrip("/").removesuffix("/chat/completions")
        if not urlsplit(self.url).path:
            self.url += "/v1"
        key = os.environ.get(self.key_variable, "")
        self._headers = {} if key else {"Authorization": openai.Omit()}
        self._api = openai.OpenAI(base_url=self.url, api_key=key or "none", timeout=self.timeout_s, max_retries=0)
        self._failures, self._answered, self._lock = 0, False, threading.Lock()
        self.trouble = ""  # what is being retried, and why; empty if nothing is

    def complete(self, messages: Sequence[Mapping[str, Any]], seed: int = 0, **options: Any) -> Answer:
        """The answer to a conversation. Safe to call from several threads."""
        body = {"model": self.model, "messages": list(messages), "seed": seed % (1 << 31), "extra_body": options}
        return self._send_with_retries(self._api.chat.completions.with_streaming_response.create, body, read_answer)

    def _send_with_retries(self, send: Callable[..., Any], body: Mapping[str, Any], read: Callable[[bytes], Read]) -> Read:
        """Send a request, with retries after temporary errors, and return `read(body of the answer)`."""
        tried, waited_s = 0, 0.0
        while True:
            try:
                answer = read(self._send(send, body))
            except TemporaryError as trouble:
                tried += 1
                pause_s = trouble.wait_s or min(PAUSE_S * 2 ** (tried - 1), LONGEST_PAUSE_S)
                if not self._answered:
                    pause_s = min(pause_s, FIRST_WAIT_S - waited_s)
                most = self.retries
                if not self._answered:
                    allowed = math.ceil(FIRST_WAIT_S / trouble.wait_s) if trouble.wait_s else FIRST_RETRIES
                    most = 0 if trouble.timed_out and not trouble.wait_s else min(allowed, most)
                if tried > most or pause_s <= 0:
                    raise self._given_up(trouble, tried) from trouble
                with self._lock:
                    self.trouble = f"{trouble}; retrying after {pause_s:.2g} s, {tried} of {most} times"
                time.sleep(pause_s)
                waited_s += pause_s
            except BrokenAnswer as unusable:
                raise self._unusable(unusable) from unusable
            else:
                with self._lock:
                    self._failures, self._answered, self.trouble = 0, True, ""
                return answer

    def _send(self, send: Callable[..., Any], body: Mapping[str, Any]) -> bytes:
        """Send one request; its failures become TacitError, BrokenAnswer or TemporaryError."""
        import openai

        late_at = time.monotonic() + self.timeout_s
        try:
            with send(**body, extra_headers=self._headers) as response:
                return self._body(response.iter_bytes(), late_at)
        except openai.APIStatusError as error:
            reply = f"{error.status_code} {_server_message(error.body) or error.response.reason_phrase}"
            if error.status_code in PERMANENT:
                key = f"none was sent: ${self.key_variable} is not set" if self._headers else f"key from ${self.key_variable}"
                about = key if error.status_code in (401, 403) else f"model {self.model!r}"
                raise TacitError(f"{self.url} {PERMANENT[error.status_code]} ({about}): {reply}") from error
            if error.status_code in PROMPT_ERRORS:
                raise BrokenAnswer(reply) from error
            raise TemporaryError(reply, _retry_after(error.response.headers)) from error
        except openai.APITimeoutError as error:
            raise self._late() from error
        except openai.APIConnectionError as error:
            reason = error.__cause__ or error
            nobody = type(reason).__name__ == "ConnectError"  # by name: the HTTP library differs between versions
            raise TemporaryError(str(reason) if nobody else f"the connection broke: {reason}", nobody=nobody) from error

    def _body(self, parts: Iterator[bytes], late_at: float) -> bytes:
        """The complete answer, if it arrives in time. The HTTP library's timeout only limits the gap between two parts."""
        body = bytearray()
        try:
            for part in parts:
                body += part
                if time.monotonic() > late_at:
                    raise self._late()
        except TemporaryError:
            raise
        except Exception as error:  # from the HTTP library: the client wraps its errors only until the body begins
            raise (
                self._late() if "Timeout" in type(error).__name__ else TemporaryError(f"the connection broke: {error}")
            ) from error
        return bytes(body)

    def _late(self) -> TemporaryError:
        return TemporaryError(f"no answer within {self.timeout_s:g} s", timed_out=True)

    def _given_up(self, trouble: TemporaryError, tried: int) -> Exception:
        if trouble.nobody:
            return TacitError(f"no server answers at {self.url}: {trouble}. Is it running?")
        if not self._answered:
            remedy = self.slow if trouble.timed_out else f"the first request failed {tried} times in a row"
            remedy += f", and it asks to wait {trouble.wait_s:g} s (Retry-After)" if trouble.wait_s else ""
            return TacitError(f"{self.url} has never answered: {trouble}; {remedy}.")
        with self._lock:
            self._failures += 1
            if self._failures < PATIENCE:
                return BrokenAnswer(str(trouble))
        return TacitError(f"{self.url} failed {PATIENCE} requests in a row, each after {tried - 1} retries: {trouble}.")

    def _unusable(self, unusable: BrokenAnswer) -> Exception:
        """The error for an unusable answer: one turn is lost, or the run stops if the first PATIENCE answers were unusable."""
        with self._lock:
            self.trouble = f"an answer could not be used: {unusable}"
            self._failures += not self._answered
            if self._answered or self._failures < PATIENCE:
                return unusable
        return TacitError(f"none of the first {PATIENCE} answers of {self.url} was usable. The last: {unusable}")


def _read_json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise BrokenAnswer(f"the answer is not JSON: {raw[:80]!r}") from error


def read_answer(raw: bytes) -> Answer:
    """Parse a chat completion. Truncated thoughts, malformed tool calls and refusals count as answers of the model."""
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


def _server_message(body: object) -> str:
    """The server's error message, from `{"error": {"message": …}}` or any other body; at most 200 characters."""
    message = body.get("message", "") if isinstance(body, dict) else body
    return replace_surrogates(" ".join(str(message or "").split())[:200])


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds of the Retry-After header; 0 if it is missing, not a number, or above 60."""
    try:
        seconds = float(headers.get("retry-after", 0))
    except ValueError:
        return 0.0
    return seconds if 0 < seconds <= 60 else 0.0


BATCH = 32  # texts per request, within the default limits of servers


class EmbeddingClient(ChatClient):
    """N texts -> [N, D], by `POST {url}/embeddings`. Requests one vector when it is created. Raises TacitError if an answer is
    unusable or the retries are used up."""

    slow: ClassVar[str] = "the model may still be loading"

    def __init__(self, url: str, model: str, key_variable: str = DEFAULT_KEY_VARIABLE, retries: int = 6) -> None:
        if not url.startswith(("http://", "https://")):
            raise TacitError(f"--embedding-url {url!r} must begin with http:// or https://, such as http://localhost:8000/v1.")
        if not model:
            raise TacitError("an endpoint needs the name of a model: add --encoder NAME.")
        super().__init__(url.rstrip("/").removesuffix("/embeddings"), model, key_variable, retries=retries)
        self._dimensions = 0
        self(["any text"])

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        batches = [self._vectors(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        for vectors_ND in batches:
            self._dimensions = self._dimensions or vectors_ND.shape[1]
            if vectors_ND.shape[1] != self._dimensions:
                raise TacitError(
                    f"{self.url} returned vectors of {vectors_ND.shape[1]} dimensions, but {self._dimensions} before: does it "
                    f"serve another model as {self.model!r} now?"
                )
        return np.concatenate(batches) if batches else np.zeros((0, self._dimensions), np.float32)

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        body = {"model": self.model, "input": list(texts), "encoding_format": "float"}
        send = self._api.embeddings.with_streaming_response.create
        try:
            return self._send_with_retries(send, body, lambda raw: read_vectors(raw, len(texts)))
        except BrokenAnswer as unusable:
            what = f"{self.url} returned no vectors for {len(texts)} texts (model {self.model!r}): {unusable}"
            raise TacitError(what) from unusable


def read_vectors(raw: bytes, count: int) -> np.ndarray:
    """[count, D] vectors of an answer, ordered by their index in it."""
    document = _read_json(raw)
    try:
        by_index = {item["index"]: item["embedding"] for item in document["data"]}
        vectors_ND = np.array([by_index[i] for i in range(count)], np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenAnswer(f"the answer has no data[0..{count - 1}].embedding of one size: {raw[:80]!r}") from error
    if vectors_ND.ndim != 2 or not vectors_ND.size or not np.isfinite(vectors_ND).all():
        raise BrokenAnswer(f"the answer's vectors are not finite numbers: {raw[:80]!r}")
    return vectors_ND


# A policy that can only sample, for evaluation.

TALK = 256  # first token of an encoded conversation; all other tokens are bytes


class ByteTokens(PolicyHooks):
    """A tokenizer for agents without one (an endpoint, an expert, a person): one token per byte."""

    context_limit = 1 << 40

    def encode_prompt(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    encode_completion = encode_prompt

    def encode_chat(self, chat: Chat) -> np.ndarray:
        return np.concatenate([np.array([TALK], np.int64), self.encode_prompt(chat.dumps())])

    def encode_answer(self, chat: Chat, answer: Message) -> np.ndarray:
        return self.encode_completion(answer.call.text() if answer.call else answer.content)

    def decode(self, tokens: np.ndarray) -> str:
        return bytes(tokens[tokens != TALK].astype(np.uint8)).decode()


class ChatPolicy(ByteTokens):
    """Sends each prompt as one user message, or as a conversation with tools; at most `concurrency` requests at a time.

    Prompts are encoded as bytes; `settle` puts the server's token counts into a finished episode. An unusable answer becomes
    an empty completion with finish `unusable`; `broken` has the reasons."""

    elsewhere = True
    repeatable = False

    def __init__(self, client: ChatClient, concurrency: int = 16) -> None:
        self._client, self._concurrency = client, concurrency
        self._broken: list[str] = []
        self._lock = threading.Lock()

    def digest(self) -> str:
        """Model name and URL, since the weights are not known."""
        return f"{self._client.model} at {self._client.url}"

    def open_scheduler(self, sampling: Sampling, hidden: HiddenState | None = None) -> EndpointScheduler:
        return EndpointScheduler(partial(self._answer, sampling), self._concurrency)

    def sample(self, requests: Sequence[Request], sampling: Sampling, hidden: HiddenState | None = None) -> list[Completion]:
        return run_requests(self.open_scheduler(sampling), requests)

    def check_answers(self) -> None:
        """Request one word, so that a wrong key, address or model fails before the run starts."""
        with contextlib.suppress(BrokenAnswer):
            self._client.complete([{"role": "user", "content": "Answer with the word yes."}], max_tokens=1)

    def settle(self, trajectory: Trajectory) -> Trajectory:
        """The episode with the server's prompt token counts, if it reported them."""
        steps = [
            replace(step, prompt_tokens=np.zeros(step.completion.read, np.int64)) if step.completion.read else step
            for step in trajectory.steps
        ]
        return replace(trajectory, steps=tuple(steps))

    @property
    def broken(self) -> Sequence[str]:
        return self._broken

    @property
    def trouble(self) -> str:
        return self._client.trouble

    def _answer(self, sampling: Sampling, request: Request) -> Completion:
        options: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": request.max_tokens or sampling.max_tokens,
            # Not in the OpenAI API, but supported by several servers; sent only if set.
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
        }
        # The encoded conversation; None if the prompt is plain text.
        chat = Chat.loads(self.decode(request.prompt)) if len(request.prompt) and request.prompt[0] == TALK else None
        if chat and chat.tools:
            options["tools"] = [tool.schema() for tool in chat.tools]
        messages = chat.to_dicts(as_text=True) if chat else [{"role": "user", "content": self.decode(request.prompt)}]
        try:
            answer = self._client.complete(messages, request.seed, **options)
        except BrokenAnswer as error:
            with self._lock:
                self._broken.append(str(error))
            return _completion("", 0, "unusable")
        whole = format_answer(answer.text, answer.calls, answer.thought) if chat else answer.text
        text = cut(whole.lstrip(), sampling.stop)
        finish: Finish = "stop" if answer.finished else "length"
        return _completion(text, answer.completion_tokens or len(text.encode()), finish, answer.prompt_tokens)


class EndpointScheduler:
    """Sends up to `concurrency` requests at a time, in daemon threads; closing does not wait for them."""

    def __init__(self, answer: Callable[[Request], Completion], concurrency: int) -> None:
        self._answer, self._most = answer, max(1, concurrency)
        self._waiting: deque[tuple[int, Request]] = deque()
        self._answered: SimpleQueue[tuple[int, Completion | BaseException]] = SimpleQueue()
        self._lock = threading.Lock()
        self._submitted = self._owed = self._threads = 0

    def submit(self, request: Request) -> int:
        request_id, self._submitted, self._owed = self._submitted, self._submitted + 1, self._owed + 1
        with self._lock:
            self._waiting.append((request_id, request))
            if self._threads == self._most:
                return request_id
            self._threads += 1
        threading.Thread(target=self._work, name="endpoint", daemon=True).start()
        return request_id

    def wait(self) -> list[tuple[int, Completion]]:
        """As in `Scheduler`. An error is raised only after finished answers were returned, so none is lost."""
        answers: list[tuple[int, Completion]] = []
        while self._owed and (not answers or not self._answered.empty()):
            request_id, answer = self._answered.get()
            if isinstance(answer, BaseException):
                if answers:
                    self._answered.put((request_id, answer))
                    break
                self._owed -= 1
                raise answer
            answers.append((request_id, answer))
            self._owed -= 1
        return sorted(answers, key=lambda one: one[0])

    def close(self) -> None:
        """Drop requests that have not been sent."""
        with self._lock:
            self._waiting.clear()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                request_id, request = self._waiting.popleft()
            try:
                self._answered.put((request_id, self._answer(request)))
            except BaseException as error:  # raised in `wait`
                self._answered.put((request_id, error))


def cut(text: str, stops: Sequence[str]) -> str:
    """The text up to and including the first stop string. They are not sent, since servers omit them from the answer."""
    ends = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def _completion(text: str, tokens: int, finish: Finish, read: int = 0) -> Completion:
    return Completion(np.zeros(tokens, np.int64), np.zeros(tokens, np.float32), text, finish, read=read)
