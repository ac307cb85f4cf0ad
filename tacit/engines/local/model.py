"""`LanguageModel`, a transformers causal LM for the engine: hidden states of a micro-batch, then logits at chosen positions.
Also device selection, threads, determinism and loading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core.errors import TacitError, first_line
from tacit.core.platform import usable_cpus
from tacit.core.trust import is_code_trusted, require_trust
from tacit.engines.local.fast.kernels import is_fast_enabled
from tacit.engines.local.fast.packed import PackedDecoder, VarlenDecoder
from tacit.engines.local.fast.projections import linear_float32
from tacit.engines.local.memory import retry_on_oom
from tacit.engines.local.packing import (
    PackedBatch,
    PaddedBatch,
    make_packed_batch,
    make_padded_batch,
    plan_packed_batches,
    plan_padded_batches,
    to_device,
)
from tacit.engines.local.pooling import check_layer
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import check_sizes, find_pretrained, take_from_cache_if_offline
from tacit.engines.models.tiny import no_progress_bars

LOGIT_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 27}
"""maximum float32 logits held at once, tokens × vocabulary; more are computed in chunks of tokens"""


class LanguageModel:
    """A causal LM in two halves: `forward_hidden` runs the decoder, `logits` the head on chosen positions only."""

    def __init__(self, hf: Any, packed: bool = True):
        """`packed`: use the packed (varlen) forward pass if fast paths are enabled and the model supports it."""
        self.hf: Any = hf
        self.decoder: Any = hf.base_model
        self.head: Any = hf.get_output_embeddings()
        self.config: Any = hf.config
        self.layers = int(self.config.num_hidden_layers)
        self.width = int(self.config.hidden_size)
        self.vocabulary = int(self.head.weight.shape[0])
        self.device: torch.device = self.head.weight.device
        # Cohere multiplies logits, Granite divides them, Gemma applies a soft cap.
        scale = getattr(self.config, "logit_scale", None) or 1.0
        divisor = getattr(self.config, "logits_scaling", None) or 1.0
        self._scale = float(scale) / float(divisor)
        self._softcap = getattr(self.config, "final_logit_softcapping", None)
        self._check_head()
        self.packed_decoder: PackedDecoder | None = None
        if packed and is_fast_enabled() and PackedDecoder.supports(hf):
            kinds = [VarlenDecoder, PackedDecoder] if VarlenDecoder.can_run(hf) else [PackedDecoder]
            for kind in kinds:
                decoder = kind(hf)
                if self._matches_transformers(decoder):
                    self.packed_decoder = decoder
                    break

    def plan_micro_batches(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], rows: np.ndarray, budget: int
    ) -> list[np.ndarray]:
        """Row indices of each micro-batch. No completion may be empty."""
        if self.packed_decoder is not None:
            return plan_packed_batches(prompts, completions, rows, budget)
        lengths = [len(prompts[r]) + len(completions[r]) - 1 for r in rows]
        return [rows[part] for part in plan_padded_batches(lengths, budget)]

    def make_micro_batch(
        self, prompts: Sequence[np.ndarray], completions: Sequence[np.ndarray], rows: np.ndarray, pad: int
    ) -> PackedBatch | PaddedBatch:
        if self.packed_decoder is not None:
            return make_packed_batch(prompts, completions, rows)
        return make_padded_batch(prompts, completions, rows, pad)

    def forward_hidden(self, packed: PackedBatch | PaddedBatch) -> Tensor:
        """[T, D] hidden states that predict the completion tokens."""
        if isinstance(packed, PackedBatch):
            assert self.packed_decoder is not None
            return self.packed_decoder(packed)
        hidden_RSD = self.decoder(input_ids=to_device(packed.input_ids, self.device), use_cache=False).last_hidden_state
        return hidden_RSD.flatten(0, 1).index_select(0, to_device(packed.positions_T, self.device))

    def all_hidden_states(self, input_ids_RS: Tensor) -> Sequence[Tensor]:
        """[R, S, D] hidden states of every layer: 0 the embeddings, `layers` (or −1) the last."""
        return self.decoder(input_ids=input_ids_RS, use_cache=False, output_hidden_states=True).hidden_states

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """[T, V] in float32."""
        weight_VD = self._head_matrix
        logits_TV = self.head(hidden_TD).float() if weight_VD is None else linear_float32(hidden_TD, weight_VD)
        if self._scale != 1.0:
            logits_TV = logits_TV * self._scale
        if self._softcap:
            logits_TV = torch.tanh(logits_TV / self._softcap) * self._softcap
        return logits_TV

    @property
    def _head_matrix(self) -> Tensor | None:
        """the head's weight matrix; None if the head has a bias or an adapter, or is sharded"""
        weight, bias = getattr(self.head, "weight", None), getattr(self.head, "bias", None)
        return weight if type(self.head) is nn.Linear and bias is None and type(weight) is nn.Parameter else None

    @property
    def chunk_tokens(self) -> int:
        """tokens whose logits are computed at once"""
        return max(1, LOGIT_ELEMENTS.get(self.device.type, 1 << 25) // self.vocabulary)

    def check_layer(self, layer: int) -> int:
        return check_layer(layer, self.layers)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Raise if our logits differ from the model's own."""
        probe = torch.arange(1, 5, device=self.device).remainder(self.vocabulary)[None]
        ours = self.logits(self.decoder(input_ids=probe, use_cache=False).last_hidden_state[0, -1:])
        theirs = self.hf(input_ids=probe, use_cache=False).logits[0, -1:].float()
        if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())):
            raise TacitError(
                f"architecture {type(self.hf).__name__} computes its logits in a way the local engine does not support "
                f"(differs by {float((ours - theirs).abs().max()):.3g} on a probe); use another model."
            )

    @torch.no_grad()
    def _matches_transformers(self, decoder: PackedDecoder) -> bool:
        """Compare with the model's own forward on a small batch, with and without shared prompts."""
        # Tokens from the whole vocabulary: the first ids are often special tokens, unstable in bfloat16.
        tokens = (np.arange(1, 40) * 7919) % self.vocabulary
        prompts = [tokens[:8], tokens[:8], tokens[8:12], tokens[12:14]]
        completions = [tokens[14:20], tokens[20:25], tokens[25:26], tokens[26:33]]
        for rows in (np.arange(4), np.arange(1, 4)):
            ours = decoder(make_packed_batch(prompts, completions, rows)).float()
            theirs = self.forward_hidden(make_padded_batch(prompts, completions, rows, 0)).float()
            error_T = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
            # bfloat16 rounding adds up to a few percent over the layers; a wrong formula is off by far more.
            exact = self.head.weight.dtype == torch.float32
            if not (error_T.max() < 1e-3 if exact else error_T.median() < 0.1):
                return False
        return True


def resolve_device(settings: EngineSettings) -> tuple[torch.device, torch.dtype]:
    available = torch.cuda.is_available()
    if settings.device == "cuda" and not available:
        raise TacitError("--engine.device cuda, but torch finds no GPU; use cpu or auto.")
    on_gpu = settings.device == "cuda" or (settings.device == "auto" and available)
    dtype = settings.dtype if settings.dtype != "auto" else ("bfloat16" if on_gpu else "float32")
    return torch.device("cuda" if on_gpu else "cpu"), getattr(torch, dtype)


def set_threads(threads: int) -> None:
    """Set torch's threads. 0: OMP_NUM_THREADS if set, else the usable CPUs; more threads than CPUs are slower than one."""
    if threads == 0 and os.environ.get("OMP_NUM_THREADS"):
        return
    torch.set_num_threads(threads or usable_cpus())


def enable_determinism(device: torch.device) -> None:
    """Use deterministic GPU algorithms in this process. Operations without a deterministic version warn."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no code reads it unwritten


def load_pretrained(model: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    """A transformers model and its tokenizer, from a checkpoint directory or a hub id, in eval mode on the device."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, trusted = take_from_cache_if_offline(find_pretrained(model)), is_code_trusted()
    if Path(source).is_dir():
        check_sizes(Path(source))
    try:
        with no_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trusted)
            hf: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, trust_remote_code=trusted)
    except Exception as error:
        if "trust_remote_code" in str(error):
            require_trust(f"model {model!r} would import its own classes from {source}")
        remedy = (
            "Check the files in it."
            if Path(source).is_dir()
            else "It is not a local directory, so it was looked up on the model hub. Check the name and the network, or give "
            "the path of a downloaded checkpoint (`tacit prepare smollm2` makes one without a hub)."
        )
        raise TacitError(f"cannot load model {model!r}: {first_line(error)} {remedy}") from error
    return retry_on_oom(lambda: hf.to(device), device, "loading the model").eval(), tokenizer
