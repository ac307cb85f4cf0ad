"""What may be asked, whichever door it comes in by: how long, how large, how hot."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tacit.core.text import is_unicode

MOST_CHARACTERS = 16_384
"""of one text; what a module reads in one turn is bounded by its context, far below this"""
COLDEST = 1e-20
"""below it, logits divided by the temperature are no numbers any more"""


def _warm(temperature: float) -> float:
    if 0 < temperature < COLDEST:
        raise ValueError(f"{temperature} is too close to 0 to divide by; say 0 for the likeliest, or at least {COLDEST:g}")
    return temperature


def _whole(text: str) -> str:
    if not is_unicode(text):
        raise ValueError("has half a character (a lone surrogate) in it")
    return text


Written = Annotated[str, AfterValidator(_whole)]
Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Actions = Annotated[list[Text], Field(max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Temperature = Annotated[Number, Field(ge=0, le=100), AfterValidator(_warm)]


class Asked(BaseModel):
    """What is not known here is refused rather than left out: an answer that ignores half of a question looks like one. Many
    clients send everything they know of, with `null` for what was not said."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _as_not_said(cls, told: Any) -> Any:
        return {name: value for name, value in told.items() if value is not None} if isinstance(told, dict) else told
