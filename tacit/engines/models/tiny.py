"""Tiny policies: randomly initialized Llama-style models, with a byte-level BPE tokenizer trained on a world's own text.

With these, every method runs on a laptop. They are built deterministically from texts, sizes and a seed, and cached on disk.
Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.core.bounds import AtLeastOne, check_bounds
from tacit.core.errors import TacitError


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Within this context, transformers shows no progress bars."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


END, PAD = "<|end|>", "<|pad|>"
FORMAT = 2  # increase it when this module builds other models, so that old cache entries are not used

STD = 0.05
"""standard deviation of initial weights; at these widths, with the usual 0.02 models learn to copy numbers later"""

WORDS = (
    r"\p{N}"  # single digits, so that a number always has the same tokens
    r"| ?\p{L}+ (?=\p{N})| ?[^\s\p{L}\p{N}]+ (?=\p{N})"  # a space before a digit belongs to the word before it
    r"| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


MAX_WEIGHTS = 1_000_000_000


@dataclass(frozen=True)
class TinySettings:
    """Sizes of a tiny policy. The defaults are about a million parameters."""

    vocab: int = 1024
    """maximum vocabulary of the tokenizer, from 512 to 65,536; with little text it is smaller"""
    hidden: AtLeastOne = 128
    """width of the residual stream"""
    layers: AtLeastOne = 4
    """decoder layers"""
    heads: AtLeastOne = 4
    """attention heads"""
    kv_heads: AtLeastOne = 4
    """key-value heads; fewer than `heads` is grouped-query attention"""
    intermediate: AtLeastOne = 384
    """width of the gated MLP"""
    context: AtLeastOne = 512
    """maximum prompt plus completion, in tokens"""

    def __post_init__(self) -> None:
        if not 512 <= self.vocab <= 65_536:
            raise TacitError(f"tiny policy: vocab = {self.vocab} must be between 512 and 65536.")
        check_bounds(self, "tiny policy: ")
        weights = 2 * self.vocab * self.hidden + self.layers * self.hidden * (4 * self.hidden + 3 * self.intermediate)
        if weights > MAX_WEIGHTS:
            raise TacitError(f"tiny policy: these sizes make {weights:,} weights, more than {MAX_WEIGHTS:,}.")
        if self.hidden % (2 * self.heads):
            raise TacitError(f"tiny policy: hidden = {self.hidden} must be an even multiple of heads = {self.heads}.")
        if self.heads % self.kv_heads:
            raise TacitError(f"tiny policy: heads = {self.heads} must be a multiple of kv_heads = {self.kv_heads}.")


TINY_SIZES = {
    "tiny": TinySettings(),
    "tiny-0.5m": TinySettings(hidden=96, heads=3, kv_heads=3, intermediate=256),
    "tiny-1m": TinySettings(),
    "tiny-4m": TinySettings(hidden=256, layers=5, heads=8, kv_heads=8, intermediate=704),
}


def cache_root() -> Path:
    """$TACIT_CACHE, else $XDG_CACHE_HOME/tacit, else ~/.cache/tacit."""
    if own := os.environ.get("TACIT_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tacit"


def tiny_checkpoint(texts: Sequence[str], sizes: TinySettings, seed: int) -> Path:
    """The directory of the tiny policy for these texts, sizes and seed: a transformers checkpoint, built on first use and
    cached. Safe if several processes build it at once. A damaged entry is rebuilt."""
    if not any(text.strip() for text in texts):
        raise TacitError("a tiny policy needs the world's texts to train its tokenizer, but there are none.")
    place = cache_root() / "tiny" / _key(texts, sizes, seed)
    if _intact(place):
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="building-", dir=place.parent))
        try:
            _build(work / "new", texts, sizes, seed)
            if place.exists() and not _intact(place):
                os.rename(place, work / "damaged")
            try:
                os.rename(work / "new", place)
            except OSError:
                if not _intact(place):
                    raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise TacitError(
            f"cannot write the tiny policy to the cache {place.parent}: {error}. Free space, or set TACIT_CACHE to a writable "
            "directory."
        ) from error
    return place


def train_tokenizer(texts: Sequence[str], vocab: int) -> Any:
    """Byte-level BPE on the pieces that `WORDS` matches. It encodes any text without loss."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _build(directory: Path, texts: Sequence[str], sizes: TinySettings, seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = train_tokenizer(texts, sizes.vocab)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, model_max_length=sizes.context, clean_up_tokenization_spaces=False
    )
    config = LlamaConfig(
        vocab_size=bpe.get_vocab_size(),
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=sizes.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    _initialise(model, sizes, seed)
    with no_progress_bars():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    files = {file.name: hash_file(file) for file in sorted(directory.iterdir())}
    manifest = {"format": FORMAT, "sizes": asdict(sizes), "seed": seed, "files": files}
    (directory / "tiny.json").write_text(json.dumps(manifest, indent=1))


def _initialise(model: Any, sizes: TinySettings, seed: int) -> None:
    """Set normal weights from our own generator, in name order, so that they do not depend on the version of transformers.
    Matrices that write into the residual stream are divided by √(2·layers), so that its norm does not grow with depth."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.ndim < 2:
                parameter.fill_(1.0)
                continue
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = STD / (2 * sizes.layers) ** 0.5 if writes else STD
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)


def _key(texts: Sequence[str], sizes: TinySettings, seed: int) -> str:
    """Cache key of the inputs. Contains no library version, so it is the same on every machine."""
    digest = hashlib.sha256(json.dumps([FORMAT, asdict(sizes), seed], sort_keys=True).encode())
    for text in texts:
        raw = text.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:24]


def _intact(place: Path) -> bool:
    try:
        files = json.loads((place / "tiny.json").read_text())["files"]
        return all(hash_file(place / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def hash_file(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
