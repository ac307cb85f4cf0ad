"""`/v1/chat/completions` and `/v1/models`, as OpenAI's clients ask for them, over the same base and adapters.

A model's own chat template makes one text of the messages. A tiny model has none: its messages are put below each other, so
that a single one with a module's prompt is answered with the module's action. The base without a module goes by its own name.
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
from starlette.requests import Request as Door
from starlette.responses import JSONResponse, Response, StreamingResponse

from tacit.core.chat import Chat, Message
from tacit.core.protocols import Request, Sampling
from tacit.core.seeds import derive
from tacit.core.types import Completion
from tacit.serving.catalogue import Offer
from tacit.serving.guard import Way
from tacit.serving.requests import Refused, not_found, read, unusable
from tacit.serving.service import Service
from tacit.serving.sessions import Asked, Number, Seed, Temperature, Written, answer_in_time

if TYPE_CHECKING:
    from tacit.engines.local.policy import LocalPolicy

MOST_CHOICES = 16


class Part(Asked):
    type: Literal["text"]
    text: Written


class Said(Asked):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Written | list[Part] | None = None

    def message(self) -> Message:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or [])
        return Message("system" if self.role == "developer" else self.role, text)


class Question(Asked):
    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[Said], Field(min_length=1, max_length=1000)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    stop: Written | Annotated[list[Written], Field(max_length=16)] | None = None
    seed: Seed | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    logprobs: bool = False
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    user: Written | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def routes(service: Service) -> list[Way]:
    began = int(time.time())

    def card(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": began, "owned_by": "tacit"}

    async def models(asked: Door) -> Response:
        return JSONResponse({"object": "list", "data": [card(name) for name in _names(service)]})

    async def model(asked: Door) -> Response:
        name = asked.path_params["name"]
        offer, _ = _find(service, name)
        return JSONResponse(card(offer.name if offer else name))

    async def complete(door: Door) -> Response:
        asked = await read(door, Question)
        offer, policy = _find(service, asked.model)
        with service.catalogue.using(offer) if offer else nullcontext():
            prompt = _read(policy, asked)
            sampling = _sampling(asked, offer, service.settings.max_tokens)
            seed = asked.seed if asked.seed is not None else secrets.randbits(62)
            requests = [Request(prompt, derive(seed, i) if i else seed) for i in range(asked.n)]
            completions = await answer_in_time(
                lambda: asyncio.gather(*(service.gathering.sample(policy, sampling, request) for request in requests)),
                service.settings,
                service.gathering,
            )
        written = sum(len(completion.tokens) for completion in completions)
        service.metrics.tokens(asked.model if not offer else offer.name, len(prompt), written)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": written, "total_tokens": len(prompt) + written}
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": asked.model}
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": _text(completion, asked.stops)},
                "logprobs": _logprobs(policy, completion) if asked.logprobs else None,
                "finish_reason": "length" if completion.finish == "length" else "stop",
            }
            for i, completion in enumerate(completions)
        ]
        if asked.stream:
            counted = usage if (asked.stream_options or {}).get("include_usage") else None
            return StreamingResponse(_pieces(head, choices, counted), media_type="text/event-stream")
        return JSONResponse({**head, "object": "chat.completion", "choices": choices, "usage": usage})

    return [
        Way("/v1/models", models),
        Way("/v1/models/{name:path}", model),
        Way("/v1/chat/completions", complete, methods=["POST"]),
    ]


def _names(service: Service) -> list[str]:
    """The modules, and the base they sit on."""
    base = next((offer.module.base.model for offer in service.catalogue.offers.values() if offer.module.adapter), None)
    return [*service.catalogue.offers, *([base] if base is not None else [])]


def _find(service: Service, name: str) -> tuple[Offer | None, LocalPolicy]:
    try:
        offer = service.catalogue.named(name)  # first: a base may stay when the modules on it have gone
    except Refused:
        names = _names(service)
        if service.catalogue.bare is not None and name == names[-1]:
            return None, service.catalogue.bare
        raise not_found(f"there is no model {name!r} here; there are {', '.join(names)}.") from None
    return offer, offer.policy


def _read(policy: LocalPolicy, asked: Question) -> np.ndarray:
    messages = tuple(said.message() for said in asked.messages)
    if policy.engine.tokenizer.chat_template:
        return policy.encode_chat(Chat(messages))
    return policy.encode_prompt("\n".join(message.content for message in messages))


def _sampling(asked: Question, offer: Offer | None, most: int) -> Sampling:
    length = (
        asked.max_completion_tokens or asked.max_tokens or min(most, 64 if offer is None else offer.module.sampling.max_tokens)
    )
    if length > most:
        raise unusable(f"max_tokens {length} is more than the {most} that may be asked for here.")
    stop = (*asked.stops, *(offer.context.format.stop if offer else ()))
    if any(not text for text in stop):
        raise unusable("a stop string is empty and would end every completion at once; leave it out.")
    return Sampling(asked.temperature, asked.top_p, asked.top_k, length, tuple(dict.fromkeys(stop)))


def _text(completion: Completion, stops: tuple[str, ...]) -> str:
    """Without what was asked to end it, which is OpenAI's way; ours keeps it."""
    ends = [at for stop in stops if (at := completion.text.find(stop)) >= 0]
    return completion.text[: min(ends)] if ends else completion.text


def _logprobs(policy: LocalPolicy, completion: Completion) -> dict[str, Any]:
    tokens = zip(completion.tokens, completion.logprobs, strict=True)
    told = [(policy.decode(np.array([token])), float(value)) for token, value in tokens]
    return {"content": [{"token": t, "logprob": v, "bytes": list(t.encode()), "top_logprobs": []} for t, v in told]}


def _pieces(head: dict[str, Any], choices: list[dict[str, Any]], usage: dict[str, int] | None) -> Iterator[str]:
    """The stream's form for an answer that comes in one piece: actions are short."""
    for choice in choices:
        index, likely = choice["index"], choice["logprobs"]
        yield _event(head, {"index": index, "delta": choice["message"], "logprobs": likely, "finish_reason": None})
        yield _event(head, {"index": index, "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]})
    if usage is not None:
        yield _event({**head, "usage": usage})
    yield "data: [DONE]\n\n"


def _event(head: dict[str, Any], *choices: dict[str, Any]) -> str:
    return f"data: {json.dumps({'object': 'chat.completion.chunk', **head, 'choices': choices})}\n\n"
