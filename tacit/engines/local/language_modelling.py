"""Next-token pretraining on documents of similar length.

`update.py` is made for long prompts and short completions. Here every token is predicted, so a padded transformers forward pass
is faster; under bfloat16 autocast on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from tacit.engines.local.packing import to_device
from tacit.engines.local.policy import LocalPolicy

PARTS = {"cpu": 4, "cuda": 2}
"""padded micro-batches per step, sorted by length; on a GPU launches cost more than padding"""


class PretrainingTrainer:
    """AdamW on all parameters of a policy held in float32."""

    def __init__(self, policy: LocalPolicy, weight_decay: float = 0.05):
        self.policy, self.model = policy, policy.engine.model.hf
        self.device, self.pad = policy.engine.device, policy.engine.codec.pad
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)

    def step(self, rows: Sequence[np.ndarray], lr: float) -> torch.Tensor:
        """One step on the documents; returns the mean loss per token, still on the device."""
        rows = sorted(rows, key=len)
        total = sum(len(row) - 1 for row in rows)
        loss = torch.zeros((), device=self.device)
        for part in np.array_split(np.arange(len(rows)), min(PARTS[self.device.type], len(rows))):
            loss = loss + self._backward([rows[i] for i in part], total)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def finish(self) -> None:
        """Tell the sampler, which holds copies of some weights, that they changed."""
        self.policy.engine.weights_changed(self.policy.name)

    def _backward(self, rows: Sequence[np.ndarray], total: int) -> torch.Tensor:
        width = max(len(row) for row in rows)
        tokens = np.full((len(rows), width), self.pad, np.int64)
        wanted = np.full((len(rows), width), -100, np.int64)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = wanted[i, : len(row)] = row
        ids, targets = (to_device(x, self.device) for x in (tokens, wanted))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            # Right padding needs no mask under causal attention.
            logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1).float(), targets[:, 1:].flatten(), ignore_index=-100, reduction="sum") / total
        loss.backward()
        return loss.detach()
