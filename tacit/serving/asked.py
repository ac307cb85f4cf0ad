"""What may be asked, whichever door it comes in by: how long, how large, how hot."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

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
Name = Annotated[str, Field(max_length=200)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Temperature = Annotated[Number, Field(ge=0, le=100), AfterValidator(_warm)]
