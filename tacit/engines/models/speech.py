"""How a checkpoint is spoken to, without its weights: for whoever only counts tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.core.errors import TacitError

if TYPE_CHECKING:
    from tacit.engines.local.passes.codec import TextCodec


def codec_in(checkpoint: str) -> TextCodec:
    from transformers import AutoConfig, AutoTokenizer

    from tacit.engines.local.passes.codec import codec_for

    try:
        return codec_for(AutoTokenizer.from_pretrained(checkpoint), AutoConfig.from_pretrained(checkpoint))
    except (OSError, ValueError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TacitError(f"cannot read the tokenizer of {checkpoint!r}: {first_line}") from error
