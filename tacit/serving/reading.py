"""The body of a request as a model of it, without FastAPI, whose way to do the same takes a fifth of a millisecond more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from tacit.serving.refusals import unusable

Asked = TypeVar("Asked", bound=BaseModel)
NAMED = 5
"""mistakes that are told of at once"""


async def read(request: Request, model: type[Asked]) -> Asked:
    """An empty body says nothing, and is refused only where something must be said."""
    try:
        return model.model_validate(json.loads(await request.body() or b"{}"))
    except ValidationError as error:
        mistakes = "; ".join(map(_mistake, error.errors()[:NAMED]))
    except (ValueError, RecursionError) as error:
        mistakes = f"it is no JSON (at character {getattr(error, 'pos', 0)})"
    raise unusable(f"the request cannot be read: {mistakes}.")


def _mistake(found: Mapping[str, Any]) -> str:
    return f"{'.'.join(map(str, found['loc'])) or 'the body'}: {found['msg']}"
