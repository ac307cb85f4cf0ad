"""A rank's part of saving and loading: distributed checkpoints, which any other number of ranks can read.

MEMBER/weight/NAME                          what is trained, in float32 (rounded as passes use it, without the optimiser)
MEMBER/exp_avg/NAME, exp_avg_sq, step       the optimiser's moments
MEMBER/reference/NAME                       the frozen reference, where there is one
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from tacit.core.errors import TacitError
from tacit.engines.local.learning.adapters import FROZEN
from tacit.engines.local.learning.saving import MOMENTS
from tacit.engines.sharded.ranks.shards import Sharded

if TYPE_CHECKING:
    from tacit.engines.sharded.ranks.rank import Rank
    from tacit.engines.sharded.ranks.weights import ShardMember

State = dict[str, Any]


def save(rank: Rank, directory: Path, optimizer: bool) -> None:
    state: State = {}
    for name, member in rank.members.items():
        for own in member.names():
            tensor = member.own(own, masters=optimizer)
            state[f"{name}/weight/{own}"] = tensor if optimizer or own not in member.sharded else tensor.to(rank.dtype).float()
        if optimizer and member.steps:
            weights = member.weights
            for own, master in weights.master.items():
                # A parameter that no loss has used yet (a value head, say) has no moments.
                for moment, value in weights.optimizer.state.get(master, {}).items():
                    state[f"{name}/{moment}/{own}"] = value if moment == "step" else weights.distributed(own, value)
        state |= {f"{name}/reference/{own}": t for own, t in _reference(rank, name, member).items()}
    try:
        with _quiet():
            dcp.save(state, checkpoint_id=directory)
    except (OSError, CheckpointException) as error:
        raise TacitError(f"cannot write the checkpoint {directory}: {error}. Earlier checkpoints are untouched.") from error


def load(rank: Rank, directory: Path, members: dict[str, dict[str, Any]], optimizer: bool) -> None:
    saved = _saved(directory)
    state: State = {}
    for name, told in members.items():
        rank.member(name)
        member = rank.members[name]
        member.forget_training()
        member.reference = None
        if told["reference"]:
            _make_reference(rank, name, member)
        state |= {f"{name}/reference/{own}": t for own, t in _reference(rank, name, member).items()}
        if optimizer and told["steps"]:
            weights = member.weights
            weights.steps = told["steps"]
            for own, master in weights.master.items():
                if f"{name}/exp_avg/{own}" in saved:
                    zeros = {moment: torch.zeros_like(master) for moment in MOMENTS[:2]}
                    moments = {**zeros, "step": torch.zeros((), dtype=torch.float32, device=master.device)}
                    weights.optimizer.state[master] = moments
                    state |= {f"{name}/{m}/{own}": weights.distributed(own, moments[m]) for m in MOMENTS[:2]}
                    state[f"{name}/step/{own}"] = moments["step"]
        state |= {f"{name}/weight/{own}": member.own(own) for own in member.names()}
    _check_fits(state, saved, directory)
    try:
        with _quiet(), torch.no_grad():
            dcp.load(state, checkpoint_id=directory)
    except (OSError, CheckpointException, RuntimeError) as error:
        raise _unreadable(directory, error) from error
    for name in members:
        if rank.members[name].steps:
            rank.members[name].weights.publish()


def _reference(rank: Rank, name: str, member: ShardMember) -> State:
    if isinstance(member.reference, Sharded):
        return {own: p.detach() for own, p in member.reference.parameters.items()}
    if member.reference is None or rank.adapters is None:
        return {}
    return {own: p.detach() for own, p in rank.adapters.parameters(member.reference).items()}


def _make_reference(rank: Rank, name: str, member: ShardMember) -> None:
    if rank.adapters is None:
        member.reference = rank.frozen_copy()
        return
    rank.adapters.make(name + FROZEN)
    member.reference = name + FROZEN


def _saved(directory: Path) -> dict[str, Any]:
    """What there is in it: name to shape and format."""
    try:
        return dict(dcp.FileSystemReader(directory).read_metadata().state_dict_metadata)
    except Exception as error:  # a pickle file, of which anything may be wrong
        raise _unreadable(directory, error) from error


def _check_fits(state: State, saved: dict[str, Any], directory: Path) -> None:
    if odd := sorted(set(state) ^ set(saved)):
        raise TacitError(f"checkpoint {directory} does not fit this policy: {len(odd)} tensors differ, first {odd[0]}.")
    for name, tensor in state.items():
        there = saved[name]
        if there.size != tensor.shape or there.properties.dtype != tensor.dtype:
            raise TacitError(
                f"checkpoint {directory} does not fit this policy: {name} is {tuple(there.size)} {there.properties.dtype} "
                f"there and {tuple(tensor.shape)} {tensor.dtype} here."
            )


def _unreadable(directory: Path, error: BaseException) -> TacitError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return TacitError(
        f"cannot read the checkpoint {directory}: {first}. It is damaged or incomplete; use an earlier checkpoint."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
