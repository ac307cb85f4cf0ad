"""What makes a base the same base: its tensors, its sizes and its tokens, whatever the files they came in.

A LoRA adapter means nothing without the very weights it was trained on. The fingerprint is a hash of every tensor (name,
format, shape, bytes), of what config.json says about the computation, and of the tokenizer. How the tensors are spread over
files, where the directory lies and which library wrote it do not matter. No torch is imported here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError

UNRELATED = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "architectures"})
"""entries of config.json that do not change what is computed"""
TOKEN_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json")
TOKEN_SETTINGS = ("chat_template", "add_bos_token", "add_eos_token", "bos_token", "eos_token", "pad_token")
"""entries of tokenizer_config.json that change what is read"""
PIECE = 1 << 22
"""bytes hashed at once"""


def fingerprint(directory: Path) -> str:
    """A sha256 of the model in a checkpoint directory, as 64 hexadecimal digits."""
    try:
        total = hashlib.sha256()
        for line in _lines(directory):
            total.update(f"{line}\n".encode())
        return total.hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TacitError(f"cannot take the fingerprint of the model in {directory}: {error}. Its files are damaged.") from error


def checkpoint_directory(source: str) -> Path:
    """Where a model's files lie: the directory itself, or where the library keeps what it took from the hub."""
    if Path(source).is_dir():
        return Path(source)
    from transformers.utils import cached_file

    try:
        file = cached_file(source, "config.json")
    except OSError as error:
        raise TacitError(f"cannot find the files of model {source!r}: {str(error).splitlines()[0]}") from error
    assert file is not None
    return Path(file).parent


def _lines(directory: Path) -> Iterator[str]:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    yield json.dumps({key: value for key, value in config.items() if key not in UNRELATED}, sort_keys=True)
    yield from sorted(_weights(directory))
    for name in TOKEN_FILES:
        if (directory / name).is_file():
            yield f"{name} {hash_file(directory / name)}"
    settings = directory / "tokenizer_config.json"
    said = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    yield json.dumps({key: said[key] for key in TOKEN_SETTINGS if said.get(key) is not None}, sort_keys=True)


def _weights(directory: Path) -> Iterator[str]:
    files = sorted(directory.glob("*.safetensors"))
    for file in files:
        yield from _tensors(file)
    if not files:  # an older format, which only torch can open: the files as they are
        others = sorted(directory.glob("*.bin"))
        if not others:
            raise OSError("it has no weights (*.safetensors)")
        yield from (f"{file.name} {hash_file(file)}" for file in others)


def _tensors(file: Path) -> Iterator[str]:
    """`name format shape hash` of each. The file is a length, a JSON header with offsets, and then the bytes."""
    with file.open("rb") as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        header: dict[str, Any] = json.loads(opened.read(start - 8))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            opened.seek(start + first)
            yield f"{name} {entry['dtype']} {entry['shape']} {_hash(opened, last - first)}"


def hash_file(file: Path) -> str:
    with file.open("rb") as opened:
        return _hash(opened, file.stat().st_size)


def _hash(opened: Any, size: int) -> str:
    digest = hashlib.sha256()
    while size > 0:
        piece = opened.read(min(PIECE, size))
        if not piece:
            raise OSError(f"{opened.name} ends {size} bytes too early")
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
