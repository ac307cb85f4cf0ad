"""Request bodies and HTTP errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request

from tacit.core.errors import TacitError
from tacit.core.progress import is_unicode

STOPPING = "the server is stopping; try again when it is back."  # with status 503


class RequestError(TacitError):
    """An error with an HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


not_found, conflict, gone = partial(RequestError, 404), partial(RequestError, 409), partial(RequestError, 410)
invalid, too_many = partial(RequestError, 422), partial(RequestError, 429)
Model = TypeVar("Model", bound=BaseModel)
MAX_MISTAKES = 5  # mistakes in one error message
SMALL_BODY = 4096  # bytes; parsing it takes a few milliseconds at most, whatever it contains


async def read_body(request: Request, model: type[Model], run: Callable[[Callable[[], Model]], Awaitable[Model]]) -> Model:
    """Parse and validate a body; an empty one means `{}`. A large body is parsed with `run`, outside the event loop."""
    body = await request.body() or b"{}"
    return _parse(body, model) if len(body) <= SMALL_BODY else await run(partial(_parse, body, model))


def _parse(body: bytes, model: type[Model]) -> Model:
    try:
        return model.model_validate(json.loads(body))
    except ValidationError as error:
        problems = []
        for one in error.errors(include_url=False, include_input=False)[:MAX_MISTAKES]:
            # drop the type names that pydantic adds to the path of a union
            where = ".".join(str(part) for part in one["loc"] if "[" not in str(part)) or "the body"
            problems.append(f"{where}: {'Input should be an object' if one['type'] == 'model_type' else one['msg']}")
        mistakes = "; ".join(problems)
    except json.JSONDecodeError as error:
        mistakes = f"it is not JSON (at character {error.pos})"
    except (ValueError, RecursionError) as error:  # invalid text, very long numbers, very deep nesting
        mistakes = f"its JSON cannot be read ({error})"
    raise invalid(f"invalid request: {mistakes}.")


MAX_CHARACTERS = 16_384  # of one text; a module's context is far smaller
MIN_TEMPERATURE = 1e-20  # below this, logits divided by the temperature overflow


def _check_temperature(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(f"{temperature} is too close to 0; use 0 for greedy sampling, or at least {MIN_TEMPERATURE:g}")
    return temperature


def _check_unicode(text: str) -> str:
    if not is_unicode(text):
        raise ValueError("contains a lone surrogate")
    return text


UnicodeText = Annotated[str, AfterValidator(_check_unicode)]
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Actions = Annotated[list[Text], Field(max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Temperature = Annotated[Number, Field(ge=0, le=100), AfterValidator(_check_temperature)]


class RequestBody(BaseModel):
    """Unknown fields are errors. `null` means that a field is not set: many clients send every field they know."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data
