"""The reference of the conformance tests: a checkpoint in plain transformers and float64, one row at a time."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.core.credit import Batch
from tacit.engines.models.tiny import TinySettings, tiny_checkpoint

SMALL = TinySettings(vocab=512, hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64, context=256)


def small_checkpoint(place: Path) -> Path:
    """A model of a few thousand random weights, in a transformers directory."""
    texts = [f"go to drawer {i} and take plate {i + 1} from shelf {i % 7}" for i in range(60)]
    return Path(shutil.copytree(tiny_checkpoint(texts, SMALL, seed=0), place / "model"))


class PlainModel:
    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).eval()
        self.vocabulary = int(self.model.config.vocab_size)
        end = self.model.config.eos_token_id
        self.ends = frozenset(end if isinstance(end, list) else [end])

    def copy(self) -> PlainModel:
        duplicate = copy.copy(self)
        duplicate.model = copy.deepcopy(self.model)
        return duplicate

    def logprobs(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], temperature: float = 1.0
    ) -> list[np.ndarray]:
        with torch.no_grad():
            return [self._logprobs(p, c, temperature).numpy() for p, c in zip(prompts, completions, strict=True)]

    def distributions(self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray]) -> list[np.ndarray]:
        """log π over the vocabulary, [T, V] per row"""
        with torch.no_grad():
            return [self._distributions(p, c, 1.0).numpy() for p, c in zip(prompts, completions, strict=True)]

    def hidden_states(self, prompts: Sequence[np.ndarray], layer: int, pooling: str) -> np.ndarray:
        rows = []
        for prompt in prompts:
            with torch.no_grad():
                states = self.model(input_ids=torch.from_numpy(prompt)[None], output_hidden_states=True).hidden_states[layer][0]
            rows.append((states[-1] if pooling == "last" else states.mean(0)).numpy())
        return np.stack(rows)

    def adamw(self, betas: tuple[float, float], weight_decay: float) -> torch.optim.Optimizer:
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, betas=betas)

    def step(self, optimizer: torch.optim.Optimizer, batch: Batch, lr: float, clip_norm: float) -> float:
        """One AdamW step on −Σ A log π / total tokens. Returns the gradient norm before clipping."""
        optimizer.zero_grad()
        for prompt, completion, weights in zip(batch.prompts, batch.completions, batch.advantages, strict=True):
            if len(completion):
                loss = -(torch.from_numpy(np.asarray(weights)) * self._logprobs(prompt, completion, 1.0)).sum()
                (loss / batch.total_tokens).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        return norm

    def _distributions(self, prompt: np.ndarray, completion: np.ndarray, temperature: float) -> torch.Tensor:
        ids = torch.from_numpy(np.concatenate([prompt, completion]).astype(np.int64))[None]
        logits = self.model(input_ids=ids).logits[0, len(prompt) - 1 : len(prompt) + len(completion) - 1]
        return torch.log_softmax(logits / temperature, -1)

    def _logprobs(self, prompt: np.ndarray, completion: np.ndarray, temperature: float) -> torch.Tensor:
        chosen = torch.from_numpy(np.asarray(completion, np.int64))
        return self._distributions(prompt, completion, temperature)[torch.arange(len(chosen)), chosen]
