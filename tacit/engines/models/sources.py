"""Which files a model's name stands for: a packaged base, a tiny size, a directory or a hub id.

No torch is imported here, unless a tiny model has to be made first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.core.errors import TacitError, unknown
from tacit.core.trust import is_code_trusted, require_trust
from tacit.engines.models.bases import BASES, base_path
from tacit.engines.models.tiny import TINY_SIZES, TinySettings, tiny_checkpoint

if TYPE_CHECKING:
    from tacit.engines.local.tokenizer import TextCodec

Texts = Sequence[str] | Callable[[], Sequence[str]]

TEXTS_SEED = 0
"""of the text a tiny tokenizer is trained on: runs with different seeds speak the same tokens"""


def find_checkpoint(model: str, seed: int = 0, world_texts: Texts | None = None, tiny: TinySettings | None = None) -> str:
    """The checkpoint that a model's name stands for: its directory (a tiny one is built where it is not there yet), or a hub
    id as it is."""
    if model in BASES:
        return str(base_path(model))
    if model not in TINY_SIZES:
        return find_pretrained(model)
    if world_texts is None:
        raise TacitError(
            f"model {model!r} trains its tokenizer on a world's text, but none was given; use a checkpoint instead."
        )
    texts = world_texts() if callable(world_texts) else world_texts
    return str(tiny_checkpoint(texts, tiny or TINY_SIZES[model], seed))


def find_pretrained(model: str) -> str:
    """The directory of a checkpoint (ours keep it under `model/`), or the hub id as it is."""
    path = Path(model).expanduser()
    if path.is_dir():
        for candidate in (path, path / "model"):
            if (candidate / "config.json").is_file():
                return str(candidate)
        if any(path.glob("**/adapter_config.json")):
            raise TacitError(f"{model!r} holds LoRA adapters, not a whole model; give the base model and load this onto it.")
        raise TacitError(f"{model!r} is a directory without config.json; give the directory of a saved transformers model.")
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model
    if model.count("/") == 1 and not looks_like_path:
        return model
    if "/" in model or looks_like_path:
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        near = sorted(s.name for s in siblings if s.is_dir() and (s / "config.json").is_file())
        there = f" Models in {path.parent}: {', '.join(near)}." if near else ""
        raise TacitError(f"no model at {model!r}: the directory does not exist.{there}")
    raise unknown("model", model, [*BASES, *TINY_SIZES, "path/to/checkpoint", "owner/name"])


# How a checkpoint is spoken to, without its weights: for whoever only counts tokens.


def codec_in(checkpoint: str) -> TextCodec:
    from transformers import AutoConfig, AutoTokenizer

    from tacit.engines.local.tokenizer import make_codec

    try:
        trusted = is_code_trusted()
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=trusted)
        return make_codec(tokenizer, AutoConfig.from_pretrained(checkpoint, trust_remote_code=trusted))
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            require_trust(f"model {checkpoint!r} would import its own classes from {checkpoint}")
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TacitError(f"cannot read the tokenizer of {checkpoint!r}: {first_line}") from error
