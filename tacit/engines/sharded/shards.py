"""Saving and loading a rank's shards: safetensors and JSON, which any other number of ranks can load.

layout.json                              tensor -> dtype, shape and, if it is sharded, its rows in each rank's file
rank-00000.safetensors, …                each rank's rows of the sharded tensors; the first also has the replicated ones

MEMBER/weight/NAME                       trained weights in float32 (without the optimizer: rounded to the compute dtype)
MEMBER/exp_avg/NAME, exp_avg_sq, step    the optimizer's moments
MEMBER/reference/NAME                    the frozen reference, if there is one
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from tacit.core.errors import TacitError, first_line
from tacit.core.files import read_json
from tacit.engines.local.checkpoint import cannot_write

LAYOUT, FORMAT = "layout.json", 1
PICKLED = ".metadata"  # of a `torch.distributed.checkpoint`, which older versions wrote; a pickle, so it is not read

State = dict[str, torch.Tensor]


def write_shards(state: State, directory: Path, rank: int, ranks: int) -> None:
    """Write this rank's tensors. Every rank must call it with the same names."""
    shards, layout = {}, {}
    for name, tensor in state.items():
        sharded = isinstance(tensor, DTensor)
        rows = [stop - start for start, stop in (_rows(tensor, r, ranks) for r in range(ranks))] if sharded else None
        layout[name] = {"dtype": _dtype(tensor), "shape": list(tensor.shape), "rows": rows}
        if sharded or not rank:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            assert rows is None or len(local) == rows[rank], f"{name}: {len(local)} rows, not {rows[rank]}"
            shards[name] = local.detach().to("cpu", copy=True).contiguous()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(shards, directory / _file(rank), metadata={"format": "pt"})
        if not rank:
            (directory / LAYOUT).write_text(json.dumps({"format": FORMAT, "ranks": ranks, "tensors": layout}, indent=1))
    except (OSError, SafetensorError) as error:
        raise cannot_write(directory, error) from error


def read_layout(directory: Path) -> dict[str, Any]:
    """Tensor -> dtype, shape, rows in each file."""
    try:
        data = read_json(directory / LAYOUT)
        if data["format"] != FORMAT:
            raise ValueError(f"{LAYOUT} has format {data['format']!r}, but this version reads {FORMAT}")
        for name, entry in data["tensors"].items():
            rows = entry["rows"]
            if rows is not None and (any(n < 0 for n in rows) or sum(rows) != entry["shape"][0]):
                raise ValueError(f"the rows of {name} in {LAYOUT} do not add up to its shape")
        return data["tensors"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _unreadable(directory, error) from error


@torch.no_grad()
def read_shards(state: State, directory: Path, layout: dict[str, Any], rank: int, ranks: int) -> None:
    """Copy this rank's part of a checkpoint into `state`, whose tensors must be those of `layout`."""
    if diff := sorted(set(state) ^ set(layout)):
        raise TacitError(f"checkpoint {directory} does not fit this policy: {len(diff)} tensors differ, first {diff[0]}.")
    for name, tensor in state.items():
        entry = layout[name]
        saved = entry["shape"], entry["dtype"], entry["rows"] is not None
        if saved != (list(tensor.shape), _dtype(tensor), isinstance(tensor, DTensor)):
            raise TacitError(
                f"checkpoint {directory} does not fit this policy: {name} is {entry['shape']} {entry['dtype']} in the file and "
                f"{list(tensor.shape)} {_dtype(tensor)} in the policy."
            )
    try:
        with ExitStack() as opened:
            files: dict[int, Any] = {}

            def open_file(number: int) -> Any:
                if number not in files:
                    files[number] = opened.enter_context(safe_open(directory / _file(number), "pt"))
                return files[number]

            for name, tensor in state.items():
                if not isinstance(tensor, DTensor):
                    tensor.copy_(open_file(0).get_tensor(name))
                    continue
                target, (start, stop), first = tensor.to_local(), _rows(tensor, rank, ranks), 0
                for number, rows in enumerate(layout[name]["rows"]):
                    low, high = max(start, first), min(stop, first + rows)
                    if low < high:
                        target[low - start : high - start].copy_(open_file(number).get_slice(name)[low - first : high - first])
                    first += rows
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise _unreadable(directory, error) from error


def _unreadable(directory: Path, error: BaseException) -> TacitError:
    return TacitError(
        f"cannot read the checkpoint {directory}: {first_line(error)}. It is damaged or incomplete; use an earlier checkpoint."
    )


def _rows(tensor: torch.Tensor, rank: int, ranks: int) -> tuple[int, int]:
    """The rows of a rank: FSDP2 splits the first dimension as `torch.chunk` does."""
    size = -(-tensor.shape[0] // ranks)
    return min(tensor.shape[0], rank * size), min(tensor.shape[0], (rank + 1) * size)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"
