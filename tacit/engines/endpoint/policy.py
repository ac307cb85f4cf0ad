"""A model behind an endpoint as a policy that can only sample, for evaluation."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from tacit.core.chat import Chat, Message
from tacit.core.protocols import PolicyHooks, Request, Sampling, run_requests
from tacit.core.types import Completion, Finish, HiddenState, Trajectory
from tacit.engines.endpoint.client import BrokenAnswer, ChatClient, format_answer

TALK = 256
"""first token of an encoded conversation; all other tokens are bytes"""


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
