"""Sums that are means over the whole batch, however it is cut into micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tacit.core.protocols import TokenView

if TYPE_CHECKING:
    import torch

Over = Literal["tokens", "rows", "actions"]
"""`tokens`: every token of the batch weighs the same. `rows`: every step does, its tokens sharing one vote. `actions`: the
mean over steps of the sum over an action's tokens, as log π(a | x) is one."""


def mean_over(values_T: torch.Tensor, view: TokenView, over: Over = "tokens") -> torch.Tensor:
    """This micro-batch's share of the batch mean of a per-token quantity."""
    if over == "tokens":
        return values_T.sum() / view.total_tokens
    if over == "actions":
        return values_T.sum() / view.total_rows
    return (values_T / view.lengths_R[view.row_T]).sum() / view.total_rows


def row_sums(values_T: torch.Tensor, view: TokenView) -> torch.Tensor:
    """[R] sum of a per-token quantity over each row."""
    return values_T.new_zeros(len(view.lengths_R)).index_add(0, view.row_T, values_T)
