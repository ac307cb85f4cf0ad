"""Packaged bases, which are tiny pretrained policies (`--model tiny-base`); finding and checking the files of a model by name.

A base is a directory in `bases/`: a transformers checkpoint in bfloat16 and `base.json`, with its settings, reading scores and
file hashes. `tacit prepare base DIR` makes a new one. `tiny-base-1` is the first version (three worlds, no notes), kept to
reproduce older results. This module does not import torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.core.errors import TacitError, describe_error, first_line, unknown
from tacit.core.files import check_readable, read_json, read_tensor_header, read_text
from tacit.core.trust import is_code_trusted, require_trust
from tacit.engines.models.tiny import TINY_SIZES, TinySettings, hash_file, no_progress_bars, tiny_checkpoint

if TYPE_CHECKING:
    from tacit.engines.local.tokenizer import TextCodec

BASE_SIZES = {
    "tiny-base": TinySettings(vocab=2048, context=1024),
    "tiny-base-3m": TinySettings(vocab=2048, hidden=192, layers=6, heads=6, kv_heads=6, intermediate=512, context=1024),
}
"""sizes of `tacit prepare base`"""
FOLDER = Path(__file__).parent / "bases"
MANIFEST = "base.json"
BASES = tuple(sorted(path.parent.name for path in FOLDER.glob(f"*/{MANIFEST}")))
"""names of the packaged bases, for `--model`"""
SMALL_VOCABULARY = 4096
"""models with at most this vocabulary count as tiny policies, which have up to 2,048 tokens; language models have more"""


def base_path(name: str) -> Path:
    """The directory of a packaged base, after checking its files against their hashes."""
    place = FOLDER / name
    manifest = read_manifest(place)
    for file, expected in manifest["files"].items():
        if not (place / file).is_file() or hash_file(place / file) != expected:
            raise TacitError(
                f"the packaged base {name!r} is damaged: {place / file} does not match {MANIFEST}. Reinstall tacit."
            )
    return place


def base_named(model: str) -> str:
    """The name of the base that this model is, or is a copy of; empty if it is not a base."""
    if model in BASES:
        return model
    place = Path(model).expanduser()
    for name in BASES:
        files, base = read_manifest(FOLDER / name)["files"], FOLDER / name
        # Sizes first, so that large files are not read.
        alike = all((place / f).is_file() and (place / f).stat().st_size == (base / f).stat().st_size for f in files)
        if alike and all(hash_file(place / f) == expected for f, expected in files.items()):
            return name
    return ""


def is_small(model: str) -> bool:
    """Whether a model is a base, or a directory with a vocabulary up to SMALL_VOCABULARY (a tiny run's checkpoint)."""
    if model in BASES:
        return True
    place = Path(model).expanduser()
    for config in (place / "config.json", place / "model" / "config.json"):
        if config.is_file():
            try:
                return int(read_json(config)["vocab_size"]) <= SMALL_VOCABULARY
            except (OSError, ValueError, KeyError, TypeError):
                return False  # loading the model reports the error
    return False


INSTRUCTION_TUNED = re.compile(r"(?i)(^|[-_.])(instruct|chat|it)($|[-_.])")
"""names of hub models that come with a chat template"""


def has_chat_template(model: str) -> bool:
    """Whether a model is instruction-tuned: by the tokenizer's files in a directory, by the name of a hub id."""
    place = Path(model).expanduser()
    if not place.is_dir():
        return "/" in model and INSTRUCTION_TUNED.search(model.rpartition("/")[2]) is not None
    for folder in (place, place / "model"):
        if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
            return True
        try:
            if read_json(folder / "tokenizer_config.json").get("chat_template"):
                return True
        except (OSError, ValueError, AttributeError):  # loading the model reports the error
            continue
    return False


def read_manifest(place: Path) -> dict[str, Any]:
    try:
        manifest = read_json(place / MANIFEST)
    except (OSError, ValueError) as error:
        raise TacitError(f"{place} is not a base: its {MANIFEST} cannot be read ({error}).") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise TacitError(f"{place} is not a base: its {MANIFEST} has no table `files`.")
    return manifest


def pack_base(source: Path, destination: Path, about: dict[str, Any]) -> None:
    """Save a trained checkpoint as a base: weights in bfloat16, and a manifest that begins with `about`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, trust_remote_code=False)
        model.save_pretrained(destination)
    AutoTokenizer.from_pretrained(source, trust_remote_code=False).save_pretrained(destination)
    (destination / "generation_config.json").unlink(missing_ok=True)
    files = {file.name: hash_file(file) for file in sorted(destination.iterdir()) if file.name != MANIFEST}
    total = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    parameters = sum(p.numel() for p in model.parameters())
    manifest = {**about, "parameters": parameters, "hash": total, "files": files}
    (destination / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


UNRELATED = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "architectures"})
"""entries of config.json that do not affect the computation"""
TOKEN_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json")
TOKEN_SETTINGS = ("chat_template", "add_bos_token", "add_eos_token", "bos_token", "eos_token", "pad_token")
"""entries of tokenizer_config.json that affect the tokens"""
PIECE = 1 << 22  # bytes of the header of a safetensors file, as the format allows; bytes hashed at once
MATRICES = ("vocab_size", "hidden_size", "intermediate_size")
"""entries of config.json; a model has matrices of the sizes vocabulary × hidden and hidden × intermediate"""


def fingerprint(directory: Path) -> str:
    """A sha256 of the model in a checkpoint directory: every tensor (name, format, shape, bytes), the config.json entries that
    affect the computation, and the tokenizer. It does not depend on how tensors are split into files. It identifies the base
    model of a LoRA adapter."""
    try:
        config = read_json(directory / "config.json")
        lines = [json.dumps({key: value for key, value in config.items() if key not in UNRELATED}, sort_keys=True)]
        lines += sorted(_weights(directory))
        lines += [f"{name} {hash_file(directory / name)}" for name in TOKEN_FILES if (directory / name).is_file()]
        settings = directory / "tokenizer_config.json"
        entries = read_json(settings) if settings.is_file() else {}
        lines.append(json.dumps({key: entries[key] for key in TOKEN_SETTINGS if entries.get(key) is not None}, sort_keys=True))
        return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TacitError(f"cannot hash the model in {directory}: {error}. Its files are damaged or incomplete.") from error


HUB_TIMEOUT_S = 10.0  # seconds to wait for the model hub


def take_from_cache_if_offline(source: str) -> str:
    """The source; if it is a hub id and the hub does not answer, its directory in the cache. The libraries would retry for over
    a minute."""
    if Path(source).is_dir():
        return source
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import get_session

    try:
        if not constants.HF_HUB_OFFLINE:
            get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
        return source
    except Exception as offline:
        try:
            return snapshot_download(source, local_files_only=True)
        except Exception:
            raise TacitError(
                f"cannot load model {source!r}: it is not a local directory, and the model hub {constants.ENDPOINT} does not "
                f"answer ({describe_error(offline)}). Check the name and the network, or give the path of a downloaded "
                "checkpoint (`tacit prepare smollm2` makes one without a hub)."
            ) from offline


def check_reachable(model: str) -> None:
    """Refuse a hub id that is neither on the hub nor in the cache, before torch is imported."""
    if model.count("/") == 1 and not Path(model).expanduser().exists():
        take_from_cache_if_offline(find_pretrained(model))


def checkpoint_directory(source: str) -> Path:
    """The directory of a model's files: the source itself, or its directory in the hub cache."""
    source = take_from_cache_if_offline(source)
    if Path(source).is_dir():
        return Path(source)
    from transformers.utils import cached_file

    try:
        file = cached_file(source, "config.json")
    except OSError as error:
        raise TacitError(f"cannot find the files of model {source!r}: {str(error).splitlines()[0]}") from error
    assert file is not None
    return Path(file).parent


def _weights(directory: Path) -> Iterator[str]:
    """`name format shape hash` of each tensor."""
    files = sorted(directory.glob("*.safetensors"))
    for file in files:
        with check_readable(file).open("rb") as opened:
            start, header = read_tensor_header(opened)
            for name, entry in header.items():
                first, last = entry["data_offsets"]
                opened.seek(start + first)
                digest, left = hashlib.sha256(), last - first
                while left > 0:
                    if not (piece := opened.read(min(PIECE, left))):
                        raise OSError(f"{opened.name} is truncated: {left} bytes are missing")
                    digest.update(piece)
                    left -= len(piece)
                yield f"{name} {entry['dtype']} {entry['shape']} {digest.hexdigest()}"
    if not files:  # an older format that only torch can open: hash the whole files
        others = sorted(directory.glob("*.bin"))
        if not others:
            raise OSError("there are no weights (*.safetensors)")
        yield from (f"{file.name} {hash_file(file)}" for file in others)


def check_sizes(directory: Path) -> None:
    """Refuse a model whose config.json claims larger sizes than its weights have, before a library allocates memory for it."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return  # an older format
    try:
        tensors: dict[str, Any] = {}
        for file in files:
            with check_readable(file).open("rb") as opened:
                tensors |= read_tensor_header(opened)[1]
        weights = sum(math.prod(tensor["shape"]) for tensor in tensors.values())
        config = read_json(directory / "config.json")
        tables = [config, *(value for value in config.values() if isinstance(value, dict))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TacitError(
            f"cannot read the model in {directory}: {describe_error(error)}. Its files are damaged or incomplete; copy or make "
            "it again."
        ) from error
    for table in tables:
        sizes = {name: table[name] for name in ("num_hidden_layers", *MATRICES) if isinstance(table.get(name), int)}
        claims = {f"{a} × {b}": sizes[a] * sizes[b] for a, b in pairwise(MATRICES) if a in sizes and b in sizes}
        claims |= {name: size for name, size in sizes.items() if name != "num_hidden_layers"}
        if sizes.get("num_hidden_layers", 0) > len(tensors):
            raise TacitError(
                f"config.json in {directory} claims {sizes['num_hidden_layers']} layers, but there are {len(tensors)} tensors."
            )
        for name, size in claims.items():
            if size > weights:
                raise TacitError(f"config.json in {directory} claims {name} = {size}, but there are {weights} weights.")


def check_adapter(directory: Path) -> None:
    """Refuse a LoRA adapter whose adapter_config.json has another rank than its weights, before it is created."""
    try:
        with check_readable(directory / "adapter_model.safetensors").open("rb") as opened:
            tensors = read_tensor_header(opened)[1]
        ranks = {int(tensor["shape"][0]) for name, tensor in tensors.items() if ".lora_A." in name}
        rank = read_json(directory / "adapter_config.json")["r"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TacitError(f"cannot read the adapter in {directory}: {type(error).__name__}: {error}.") from error
    if ranks != {rank}:
        own = ", ".join(map(str, sorted(ranks))) or "none"
        raise TacitError(f"adapter_config.json in {directory} claims rank {str(rank)[:40]}, but its weights have {own}.")


def check_tokenizer(directory: Path) -> None:
    """Refuse a tokenizer whose regular expressions could take exponential time, unless its code is trusted."""
    try:
        data = read_json(directory / "tokenizer.json")
        waiting: list[Any] = [data.get(part) for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder")]
    except FileNotFoundError:
        return
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise TacitError(f"cannot read {directory / 'tokenizer.json'}: {error}.") from error
    while waiting:
        value = waiting.pop()
        pattern = value.get("Regex") if isinstance(value, dict) else None
        if isinstance(pattern, str) and may_backtrack(pattern):
            require_trust(
                f"tokenizer.json in {directory} would run the regular expression {pattern[:200]!r}, which may never end"
            )
        waiting += list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def check_templates(directory: Path) -> None:
    """Refuse chat templates with multiplications, powers or large numbers, unless they are trusted: one such operation can take
    hours or all memory, and cannot be interrupted."""
    from jinja2 import Environment, TemplateError

    patterns = ("*.jinja", "*/*.jinja", "tokenizer_config.json", "processor_config.json", "chat_template.json")
    for file in (path for pattern in patterns for path in directory.glob(pattern)):
        try:
            template = read_text(file) if file.suffix == ".jinja" else read_json(file).get("chat_template") or ""
            texts = [template] if isinstance(template, str) else [str(one["template"]) for one in template]
            tokens = [token for text in texts for token in Environment().lex(text)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, TemplateError) as error:
            raise TacitError(f"cannot read the chat template in {file}: {error}.") from error
        for _, kind, value in tokens:
            if (kind == "operator" and value in ("*", "**")) or (kind in ("integer", "float") and len(value) > 6):
                require_trust(f"the chat template in {file} would compute with {value[:40]!r}, which may never end")


def may_backtrack(pattern: str) -> bool:
    """Whether the pattern repeats a group without limit, has more than two unlimited repeats in one alternative, or is very
    long. The patterns of GPT-2, Llama, Qwen and DeepSeek are none of these."""
    if len(pattern) > 2000:
        return True
    plain = re.sub(r"\\[pP]\{[^}]*\}|\\.", "x", pattern, flags=re.DOTALL)
    while plain != (plain := re.sub(r"\[[^\[\]]*\]", "x", plain)):
        pass
    repeats = r"[*+][+?]?|\{\d*,(?:\d{3,})?\}|\{\d{3,}"
    many = any(len(re.findall(repeats, part)) > 2 for part in plain.split("|"))
    return many or re.search(rf"\)(?:{repeats})", plain) is not None


# Resolving a model's name: a packaged base, a tiny size, a directory or a hub id.

Texts = Sequence[str] | Callable[[], Sequence[str]]

TEXTS_SEED = 0
"""seed of the text a tiny tokenizer is trained on, so that runs with different seeds have the same tokenizer"""


def find_checkpoint(model: str, seed: int = 0, world_texts: Texts | None = None, tiny: TinySettings | None = None) -> str:
    """The checkpoint of a model's name: a directory (tiny models are built first), or a hub id."""
    if model in BASES:
        return str(base_path(model))
    if model not in TINY_SIZES:
        return find_pretrained(model)
    if world_texts is None:
        raise TacitError(
            f"model {model!r} needs the texts of a world to train its tokenizer, but there are none; use a checkpoint instead."
        )
    texts = world_texts() if callable(world_texts) else world_texts
    return str(tiny_checkpoint(texts, tiny or TINY_SIZES[model], seed))


def find_pretrained(model: str) -> str:
    """The directory of a checkpoint (in ours, its folder `model/`), or the hub id unchanged."""
    path = Path(model).expanduser()
    if path.is_dir():
        for candidate in (path, path / "model"):
            if (candidate / "config.json").is_file():
                return str(candidate)
        if any(path.glob("**/adapter_config.json")):
            raise TacitError(f"{model!r} has LoRA adapters, not a whole model; give the base model and load these into it.")
        raise TacitError(f"{model!r} has no config.json; give the directory of a saved transformers model.")
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model
    if model.count("/") == 1 and not looks_like_path:
        return model
    if "/" in model or looks_like_path:
        siblings = path.parent.iterdir() if path.parent.is_dir() else ()
        near = sorted(s.name for s in siblings if s.is_dir() and (s / "config.json").is_file())
        nearby = f" Models in {path.parent}: {', '.join(near)}." if near else ""
        raise TacitError(f"no model at {model!r}: the directory does not exist.{nearby}")
    raise unknown_model(model, (*BASES, *TINY_SIZES))


def unknown_model(model: str, names: Iterable[str]) -> TacitError:
    """The error for a name that is neither one of `names` nor a path or hub id."""
    if model in TINY_SIZES:
        return TacitError(
            f"model {model!r} is built from a world's texts and has no checkpoint yet; name a checkpoint instead."
        )
    if model.lower().startswith("smol"):
        return TacitError(f"unknown model {model!r}. Make it with `tacit prepare smollm2 DIR`, then give --model DIR.")
    return unknown("model", model, [*names, "path/to/checkpoint", "owner/name"])


def codec_in(checkpoint: str) -> TextCodec:
    """The tokenizer of a checkpoint, loaded without its weights, for counting tokens."""
    from transformers import AutoConfig, AutoTokenizer

    from tacit.engines.local.tokenizer import make_codec

    try:
        trusted = is_code_trusted()
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=trusted)
        return make_codec(tokenizer, AutoConfig.from_pretrained(checkpoint, trust_remote_code=trusted))
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            require_trust(f"model {checkpoint!r} would import its own classes from {checkpoint}")
        raise TacitError(f"cannot read the tokenizer of {checkpoint!r}: {first_line(error)}") from error
