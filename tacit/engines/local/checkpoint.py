"""Saving and loading a local policy: weights in transformers or peft format, and the state needed to resume training exactly.

policy.json                    manifest, with a digest of the trained weights
model/                         all parameters: a transformers checkpoint
adapters/<name>/               LoRA: a peft checkpoint for each adapter
training/<name>.safetensors    optimizer moments and steps; float32 masters of bfloat16 weights; value head
reference/<name>.safetensors   the frozen reference, if there is one
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from safetensors.torch import save as save_bytes
from torch import Tensor

from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.engines.local.engine import FROZEN_SUFFIX, AdapterState, LocalEngine
from tacit.engines.local.memory import is_out_of_memory
from tacit.engines.local.model import LanguageModel
from tacit.engines.models.tiny import no_progress_bars

FORMAT = 1
MANIFEST = "policy.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save(engine: LocalEngine, directory: Path, optimizer: bool) -> None:
    """Save everything into an empty directory. The manifest is written last and marks the checkpoint as complete."""
    digest = engine.digest(masters=optimizer)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        export(engine, directory)
        for name, member in engine.members.items():
            state = _head_state(member)
            if optimizer and member.steps:
                weights = member.weights
                for param, master in weights.master.items():
                    if master is not weights.params[param]:
                        state[f"master/{param}"] = master
                    # A parameter that no loss has used yet (e.g. the value head) has no moments.
                    state |= {f"{moment}/{param}": value for moment, value in weights.optimizer.state.get(master, {}).items()}
            write_tensors(directory / "training" / f"{name}.safetensors", state)
            if isinstance(member.reference, LanguageModel):
                write_tensors(directory / "reference" / f"{name}.safetensors", dict(member.reference.hf.named_parameters()))
            elif member.reference is not None:
                write_tensors(directory / "reference" / f"{name}.safetensors", _adapter_state(engine, member.reference))
        members = {name: {"reference": m.reference is not None, "steps": m.steps} for name, m in engine.members.items()}
        manifest = {"format": FORMAT, "lora": bool(engine.adapters), "optimizer": optimizer, "digest": digest}
        (directory / MANIFEST).write_text(json.dumps({**manifest, "members": members}, indent=1))
    except (OSError, SafetensorError) as error:
        raise cannot_write(directory, error) from error


def cannot_write(directory: Path, error: Exception) -> TacitError:
    return TacitError(f"cannot write the checkpoint {directory}: {error}. Earlier checkpoints are untouched.")


def export(engine: LocalEngine, directory: Path) -> None:
    """Save the weights the model uses, for transformers or peft."""
    if engine.adapters:
        for name in engine.members:  # peft itself would look up the base model
            engine.adapters.peft.peft_config[name].save_pretrained(directory / "adapters" / name)
            write_tensors(directory / "adapters" / name / "adapter_model.safetensors", _adapter_state(engine, name))
    else:
        with no_progress_bars():
            engine.model.hf.save_pretrained(directory / "model")
        engine.tokenizer.save_pretrained(directory / "model")


def load(engine: LocalEngine, directory: Path) -> str:
    """Load a saved policy into this one, bit for bit. Returns the expected digest of the weights, or "" for a compact file."""
    manifest = read_manifest(directory, bool(engine.adapters), engine.members)
    if not engine.adapters:
        file = directory / "model" / "model.safetensors"
        files = sorted(file.parent.glob("model*.safetensors"))  # transformers may have split it
        if not files:
            raise TacitError(f"cannot read checkpoint file {file}: it is missing.")
        tensors = {name: tensor for part in files for name, tensor in read_tensors(part).items()}
        _copy_into(dict(engine.model.hf.named_parameters()), tensors, file)
    for name, info in manifest["members"].items():
        member = engine.member(name)
        if engine.adapters:
            file = directory / "adapters" / name / "adapter_model.safetensors"
            _copy_into(_adapter_state(engine, name), read_tensors(file), file)
        member.reset_training()
        _load_training(member, directory / "training" / f"{name}.safetensors", manifest["optimizer"], info["steps"])
        member.reference, file = None, directory / "reference" / f"{name}.safetensors"
        if info["reference"] and engine.adapters:
            state = read_tensors(file)
            engine.adapters.add(name + FROZEN_SUFFIX)
            _copy_into(_adapter_state(engine, name + FROZEN_SUFFIX), state, file)
            member.reference = name + FROZEN_SUFFIX
        elif info["reference"]:
            state, frozen = read_tensors(file), engine.copy_frozen()
            _copy_into(dict(frozen.named_parameters()), state, file)
            member.reference = engine.wrap_model(frozen)
    engine.weights_changed(*manifest["members"])
    return manifest["digest"]


def load_adapter(engine: LocalEngine, name: str, directory: Path) -> None:
    """Replace one adapter by a saved one of the same shape, converted to the model's dtype."""
    if not engine.adapters:
        raise TacitError(f"{directory} holds a LoRA adapter, but this policy trains all parameters (lora_rank 0).")
    member, file = engine.member(name), directory / "adapter_model.safetensors"
    targets, tensors = _adapter_state(engine, name), read_tensors(file)
    dtypes = {key: target.dtype for key, target in targets.items()}
    _copy_into(targets, {key: t.to(dtypes.get(key, t.dtype)) for key, t in tensors.items()}, file)
    member.reset_training()
    member.reference = None
    engine.weights_changed(name)


def _adapter_state(engine: LocalEngine, name: str) -> dict[str, Tensor]:
    """Parameter names as peft saves them: without the adapter name, below `base_model.model`."""
    assert engine.adapters is not None
    parameters = engine.adapters.parameters(name)
    return {f"base_model.model.{key.replace(f'.{name}.', '.')}": p for key, p in parameters.items()}


def _head_state(member: AdapterState) -> dict[str, Tensor]:
    return {name: p for name, p in member.parameters.items() if name.startswith("value_head.")}


def _load_training(member: AdapterState, file: Path, optimizer: bool, steps: int) -> None:
    state = read_tensors(file)
    _copy_into(_head_state(member), {name: t for name, t in state.items() if name.startswith("value_head.")}, file)
    if not optimizer or not steps:
        return
    weights = member.weights
    weights.steps = steps
    has_masters = any(name.startswith("master/") for name in state)  # compact files have none: masters start from the weights
    try:
        for name, master in weights.master.items():
            if master is not weights.params[name] and has_masters:
                master.data.copy_(state[f"master/{name}"])
            if any(f"{moment}/{name}" in state for moment in MOMENTS):
                moments = {moment: state[f"{moment}/{name}"].to(master.device) for moment in MOMENTS}
                weights.optimizer.state[master] = moments
    except (KeyError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # the file is fine
        raise TacitError(f"checkpoint file {file} does not fit this policy: {error}.") from error


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, file, metadata={"format": "pt"})


def read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(file, error) from error


@torch.no_grad()
def _copy_into(targets: dict[str, Tensor], tensors: dict[str, Tensor], file: Path) -> None:
    """Copy every tensor into its target. A missing or extra tensor, or another shape or dtype, is an error."""
    if unmatched := sorted(set(targets) ^ set(tensors)):
        raise TacitError(
            f"checkpoint file {file} does not fit this policy: {len(unmatched)} tensors differ, first {unmatched[0]}."
        )
    for name, target in targets.items():
        saved = tensors[name]
        if target.shape != saved.shape or target.dtype != saved.dtype:
            dtype = str(saved.dtype).removeprefix("torch.")
            remedy = f" Load it as it was saved: --engine.dtype {dtype}." if target.dtype != saved.dtype else ""
            raise TacitError(
                f"checkpoint file {file} does not fit this policy: {name} is {tuple(saved.shape)} {saved.dtype} in the file "
                f"and {tuple(target.shape)} {target.dtype} in the policy.{remedy}"
            )
    for name, target in targets.items():
        target.copy_(tensors[name])


def read_manifest(directory: Path, lora: bool, members: Iterable[str]) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises if a policy with these members, with or without LoRA, cannot load it."""
    file = directory / MANIFEST
    try:
        manifest = read_json(file)
        version = manifest["format"]
        manifest["lora"], manifest["optimizer"], manifest["digest"], manifest["members"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(file, error) from error
    if version != FORMAT:
        raise TacitError(f"checkpoint file {file} has format {version}; this version of Tacit reads format {FORMAT}.")
    if manifest["lora"] != lora:
        kinds = ("all parameters (lora_rank 0)", "LoRA adapters (lora_rank above 0)")
        raise TacitError(
            f"checkpoint {directory} holds {kinds[manifest['lora']]}, but this policy trains {kinds[not manifest['lora']]}."
        )
    check_members(directory, manifest["members"], members)
    return manifest


def check_members(directory: Path, saved: Iterable[str], members: Iterable[str]) -> None:
    """Raise if the policy has an adapter that the checkpoint lacks: loading would leave its weights unchanged."""
    if unknown := sorted(set(members) - set(saved)):
        names = ", ".join(map(repr, unknown))
        raise TacitError(
            f"checkpoint {directory} has no adapter {names}, which this policy has: it was created after the checkpoint was "
            "saved. Load the checkpoint into a new policy, then create the adapter."
        )


def _unreadable(file: Path, error: Exception) -> TacitError:
    return TacitError(f"cannot read checkpoint file {file}: {error}. It is damaged or incomplete; use an earlier checkpoint.")


# Compact files keep the weights exactly and compress the optimizer's state.
#
#     float32 masters        dropped: they restart from the bfloat16 weights
#     first moments          4 bits, scaled in blocks of 128
#     second moments         the product of row means and column means, as in Adafactor (Shazeer and Stern, 2018)
#
# 4-bit first and factored second moments train like full ones (Li, Chen and Zhu, 2023, "Memory Efficient Optimizers with 4-bit
# States"); here they are rounded once per transfer.

BLOCK = 128  # number of first moments that share a scale


def compact_file(file: Path) -> bytes | None:
    """The compact version of a checkpoint file; None if the file stays as it is."""
    if file.name == MANIFEST:  # without its digest, which is that of the masters
        return json.dumps({**read_json(file), "digest": ""}, indent=1).encode()
    if file.suffix != ".safetensors" or file.parent.name not in ("training", "reference"):
        return None
    tensors, small = load_file(file), {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "exp_avg":
            blocks = torch.nn.functional.pad(tensor.flatten(), (0, -tensor.numel() % BLOCK)).view(-1, BLOCK)
            scale = (blocks.abs().amax(1, keepdim=True) / 7).bfloat16()
            levels = torch.where(scale > 0, blocks / scale, 0).round().clamp(-7, 7).to(torch.int16) + 8
            small[f"exp_avg.levels/{rest}"] = (levels[:, ::2] * 16 + levels[:, 1::2]).to(torch.uint8)
            small[f"exp_avg.scales/{rest}"] = scale.squeeze(1)
            small[f"exp_avg.shape/{rest}"] = torch.tensor(tensor.shape)
        elif kind == "exp_avg_sq" and tensor.ndim == 2:
            for side, dim in (("rows", 1), ("columns", 0)):
                small[f"exp_avg_sq.{side}/{rest}"] = tensor.mean(dim).bfloat16()
        elif kind != "master":
            # With B = 0 the adapter has no effect, so A can be zeroed.
            unused = "lora_A" in name and not bool(tensors[name.replace("lora_A", "lora_B")].any())
            small[name] = torch.zeros_like(tensor) if unused and file.parent.name == "reference" else tensor
    return save_bytes({name: tensor.contiguous() for name, tensor in small.items()}, metadata={"format": "pt"})


def restore_file(file: Path) -> None:
    """Rewrite a compact training file with full moments; other files stay unchanged."""
    tensors, full = load_file(file), {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "exp_avg.levels":
            levels = torch.stack([tensor // 16, tensor % 16], -1).flatten(1).float() - 8
            shape = tensors[f"exp_avg.shape/{rest}"].tolist()
            values = (levels * tensors[f"exp_avg.scales/{rest}"].float()[:, None]).flatten()
            full[f"exp_avg/{rest}"] = values[: int(torch.tensor(shape).prod())].view(shape)
        elif kind == "exp_avg_sq.rows":
            columns = tensors[f"exp_avg_sq.columns/{rest}"].float()
            if [len(tensor), len(columns)] != tensors[f"exp_avg.shape/{rest}"].tolist():  # their product could be enormous
                raise ValueError(f"the moments of {rest} are of different shapes")
            full[f"exp_avg_sq/{rest}"] = torch.outer(tensor.float(), columns) / columns.mean().clamp_min(
                torch.finfo(torch.float32).tiny
            )
        elif not kind.startswith(("exp_avg.", "exp_avg_sq.")):
            full[name] = tensor
    if full.keys() != tensors.keys():
        temporary = file.with_suffix(".tmp")
        save_file({name: tensor.contiguous() for name, tensor in full.items()}, temporary, metadata={"format": "pt"})
        shutil.move(temporary, file)
