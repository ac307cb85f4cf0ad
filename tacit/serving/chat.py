"""`/v1/chat/completions` and `/v1/models`, compatible with OpenAI's clients.

Messages are rendered with the chat template. A tiny model has none: its messages are joined by newlines, so that a single
message with a module's prompt is answered with the module's action. The base without a module is available under its own name.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response, StreamingResponse

from tacit.core.chat import Chat, Message
from tacit.core.protocols import Request, Sampling
from tacit.core.seeds import derive
from tacit.core.types import Completion
from tacit.serving.catalog import ServedModule
from tacit.serving.guard import NamedRoute
from tacit.serving.requests import (
    Number,
    RequestBody,
    RequestError,
    Seed,
    Temperature,
    UnicodeText,
    invalid,
    not_found,
    read_body,
)
from tacit.serving.service import Service
from tacit.serving.sessions import wait_for_answer

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy

MAX_CHOICES = 16


class Part(RequestBody):
    type: Literal["text"]
    text: UnicodeText


class ChatMessage(RequestBody):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: UnicodeText | list[Part] | None = None

    def message(self) -> Message:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or [])
        return Message("system" if self.role == "developer" else self.role, text)


class ChatRequest(RequestBody):
    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    stop: UnicodeText | Annotated[list[UnicodeText], Field(max_length=16)] | None = None
    seed: Seed | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    logprobs: bool = False
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: UnicodeText | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def routes(service: Service) -> list[NamedRoute]:
    created = int(time.time())

    def describe_model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "tacit"}

    async def models(request: HTTPRequest) -> Response:
        return JSONResponse({"object": "list", "data": [describe_model(name) for name in _names(service)]})

    async def model(request: HTTPRequest) -> Response:
        name = request.path_params["name"]
        served, _ = _find(service, name)
        return JSONResponse(describe_model(served.name if served else name))

    async def complete(http: HTTPRequest) -> Response:
        request = await read_body(http, ChatRequest, service.run)
        served, policy = _find(service, request.model)
        with service.catalog.use(served) if served else nullcontext():
            run = served.run if served else service.run
            prompt = await run(lambda: _encode_messages(policy, request))
            sampling = _sampling(request, served, service.settings.max_tokens)
            seed = request.seed if request.seed is not None else secrets.randbits(62)
            requests = [Request(prompt, derive(seed, i) if i else seed) for i in range(request.n)]
            completions = await wait_for_answer(
                lambda: asyncio.gather(*(service.batching.sample(policy, sampling, request) for request in requests)),
                service.settings,
                service.batching,
            )
        generated = sum(len(completion.tokens) for completion in completions)
        service.metrics.count_turn(request.model if not served else served.name, len(prompt), generated)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": generated, "total_tokens": len(prompt) + generated}
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": request.model}
        choices = await service.run(lambda: [_choice(i, done, request, policy) for i, done in enumerate(completions)])
        if request.stream:
            reported_usage = usage if (request.stream_options or {}).get("include_usage") else None
            return StreamingResponse(_stream(head, choices, reported_usage), media_type="text/event-stream")
        return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    return [
        NamedRoute("/v1/models", models),
        NamedRoute("/v1/models/{name:path}", model),
        NamedRoute("/v1/chat/completions", complete, methods=["POST"]),
    ]


def _names(service: Service) -> list[str]:
    """The modules, then their base."""
    base = next((served.module.base.model for served in service.catalog.modules.values() if served.module.adapter), None)
    return [*service.catalog.modules, *([base] if base is not None else [])]


def _find(service: Service, name: str) -> tuple[ServedModule | None, LocalPolicy]:
    try:
        served = service.catalog.find(name)  # first, because a base stays loaded when its modules are removed
    except RequestError:
        names = _names(service)
        if service.catalog.base_policy is not None and name == names[-1]:
            return None, service.catalog.base_policy
        raise not_found(f"there is no model {name!r}; available are {', '.join(names)}.") from None
    return served, served.policy


def _encode_messages(policy: LocalPolicy, request: ChatRequest) -> np.ndarray:
    messages = tuple(message.message() for message in request.messages)
    if policy.engine.tokenizer.chat_template:
        return policy.encode_chat(Chat(messages))
    return policy.encode_prompt("\n".join(message.content for message in messages))


def _sampling(request: ChatRequest, served: ServedModule | None, limit: int) -> Sampling:
    default = 64 if served is None else served.module.sampling.max_tokens
    length = request.max_completion_tokens or request.max_tokens or min(limit, default)
    if length > limit:
        raise invalid(f"max_tokens {length} is more than this server's limit of {limit}.")
    stop = (*request.stops, *(served.context.format.stop if served else ()))
    if any(not text for text in stop):
        raise invalid("a stop string is empty; leave it out.")
    return Sampling(request.temperature, request.top_p, request.top_k, length, tuple(dict.fromkeys(stop)))


def _choice(index: int, completion: Completion, request: ChatRequest, policy: LocalPolicy) -> dict[str, Any]:
    """The text is without the client's stop strings, as in OpenAI's API; our engine keeps them."""
    stop_positions = [at for stop in request.stops if (at := completion.text.find(stop)) >= 0]
    text, logprobs = completion.text[: min(stop_positions)] if stop_positions else completion.text, None
    if request.logprobs:
        tokens = zip(completion.tokens, completion.logprobs, strict=True)
        decoded = [(policy.decode(np.array([token])), float(value)) for token, value in tokens]
        logprobs = {"content": [{"token": t, "logprob": v, "bytes": list(t.encode()), "top_logprobs": []} for t, v in decoded]}
    reason = "length" if completion.finish == "length" else "stop"
    message = {"role": "assistant", "content": text}
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def _stream(head: dict[str, Any], choices: list[dict[str, Any]], usage: dict[str, int] | None) -> Iterator[str]:
    """Server-sent events with the whole answer in one chunk: actions are short."""

    def event(head: dict[str, Any], *choices: dict[str, Any]) -> str:
        return f"data: {json.dumps({'object': 'chat.completion.chunk', **head, 'choices': choices})}\n\n"

    for choice in choices:
        index, logprobs = choice["index"], choice["logprobs"]
        yield event(head, {"index": index, "delta": choice["message"], "logprobs": logprobs, "finish_reason": None})
        yield event(head, {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]})
    if usage is not None:
        yield event({**head, "usage": usage})
    yield "data: [DONE]\n\n"
