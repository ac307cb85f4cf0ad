"""New weights for a vLLM that is running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class TakesOver:
    """What a vLLM worker can do besides (`worker_extension_cls`)."""

    model_runner: Any

    def take_over(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Named as transformers names them; a tied head is not among them."""
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        self._renew_tied_head()

    def _renew_tied_head(self) -> None:
        """On a CPU each linear layer multiplies by a packed copy of its weight. What is loaded is packed again; a tied head
        loads nothing, and would go on answering with the old weights."""
        model = self.model_runner.model
        head = getattr(getattr(model, "runnable", model), "lm_head", None)
        if head is not None and hasattr(head, "cpu_linear"):
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)
