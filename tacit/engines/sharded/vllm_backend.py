"""Seeded sampling in vLLM: the n-th token of a request is a function of its logits, its seed and n, as in the local engine.

A logits processor samples the token, sets its logit to its log-probability and all others to −∞. vLLM then samples greedily,
and returns this token and its processed logit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from vllm import EngineArgs, LLMEngine, SamplingParams, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from tacit.core.protocols import Sampling
from tacit.engines.local.sampling import sample_tokens
from tacit.engines.local.slots import cache_stop_conditions, draw_uniforms
from tacit.engines.sharded.messages import SampleRequest, SampleResult, ServerConfig


@dataclass(frozen=True)
class _DrawRow:
    sampling: Sampling
    uniform_T: np.ndarray
    tokens: list[int]  # sampled so far; vLLM appends to it


class SeededLogitsProcessor(LogitsProcessor):
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool):
        self._rows: dict[int, _DrawRow] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for slot in batch_update.removed:
            self._rows.pop(slot, None)
        for slot, params, _, tokens in batch_update.added:
            self._rows.pop(slot, None)
            if extra := params.extra_args:
                sampling = Sampling(extra["temperature"], extra["top_p"], extra["top_k"])
                self._rows[slot] = _DrawRow(sampling, draw_uniforms([extra["seed"]], params.max_tokens)[0], tokens)
        for source, target, direction in batch_update.moved:
            moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if replaced is not None and direction is MoveDirectionality.SWAP:
                self._rows[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        by_sampling: dict[Sampling, list[int]] = {}
        for slot, row in self._rows.items():
            by_sampling.setdefault(row.sampling, []).append(slot)
        for sampling, slots in by_sampling.items():
            # Chunked prefill gives logits before the prompt's end; vLLM discards tokens sampled from them.
            noise = [self._rows[p].uniform_T[min(len(self._rows[p].tokens), len(self._rows[p].uniform_T) - 1)] for p in slots]
            rows_B = torch.tensor(slots, device=logits.device)
            tokens_B, logprobs_B = sample_tokens(logits[rows_B], torch.tensor(np.array(noise), device=logits.device), sampling)
            logits[rows_B] = -torch.inf
            logits[rows_B, tokens_B] = logprobs_B
        return logits


class WeightReceiver:
    """Methods added to vLLM's workers (`worker_extension_cls`)."""

    model_runner: Any

    def load_trained_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights with transformers' names, without a tied head."""
        self.model_runner.reload_weights(weights_iterator=iter(weights))
        # On a CPU linear layers use packed copies of their weights. Loading repacks them, except for a tied head, which is not
        # loaded and would keep the old weights.
        model = self.model_runner.model
        head = getattr(getattr(model, "runnable", model), "lm_head", None)
        if head is not None and hasattr(head, "cpu_linear"):
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)


LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM's max_lora_rank
MAIN = "default"
MAX_PREFILL_TOKENS = 16_384  # prompt tokens per prefill on a GPU; vLLM's default of 2,048 leaves it idle


@dataclass
class _Row:
    request: SampleRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class VllmServer:
    """A vLLM engine. Requests can be added at any time; each step samples one token per request."""

    def __init__(self, config: ServerConfig):
        self._config = config
        self._rows: dict[str, _Row] = {}
        self._adapters: dict[str, LoRARequest] = {}
        self._loaded_adapters = 0
        self._versions: dict[str, int] = {} if config.lora_rank else {MAIN: 0}
        self._engine = LLMEngine.from_engine_args(EngineArgs(**_engine_arguments(config)))
        tokenizer = AutoTokenizer.from_pretrained(config.checkpoint, trust_remote_code=False)
        vocabulary = self._engine.model_config.get_vocab_size()
        self._stops = cache_stop_conditions(tokenizer, config.end_tokens, vocabulary)

    @property
    def busy(self) -> bool:
        return bool(self._rows)

    def add(self, requests: list[SampleRequest]) -> None:
        for request in requests:
            name = f"{request.request_id}-{self._versions[request.member]}"
            sampling = request.sampling
            params = SamplingParams(
                temperature=0.0,
                max_tokens=request.max_tokens,
                stop_token_ids=list(self._config.end_tokens),
                ignore_eos=True,  # `_stops` decides
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
                extra_args={"seed": request.seed}
                | {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")},
            )
            prompt, adapter = TokensPrompt(prompt_token_ids=list(request.prompt)), self._adapters.get(request.member)
            self._engine.add_request(name, prompt, params, lora_request=adapter)
            self._rows[name] = _Row(request)

    def cancel(self, request_ids: list[int]) -> None:
        self._abort([name for name, row in self._rows.items() if row.request.request_id in request_ids])

    def load(self, member: str, version: int, path: str) -> None:
        if not self._config.lora_rank:
            with self._restart_requests(member, version):
                self._engine.collective_rpc("load_trained_weights", args=(load_file(path).items(),))
            return
        with self._restart_requests(member, version):
            old = self._adapters.get(member)
            # A new name and number for every version, since vLLM identifies adapters by number.
            self._loaded_adapters += 1
            self._adapters[member] = LoRARequest(f"{member}-{version}-{self._loaded_adapters}", self._loaded_adapters, path)
            # Load now: an unreadable file must not end the process at its first token.
            self._engine.add_lora(self._adapters[member])
            if old is not None:
                self._engine.remove_lora(old.lora_int_id)

    @contextmanager
    def _restart_requests(self, member: str, version: int) -> Iterator[None]:
        """Restart this member's requests after loading, since a completion is sampled from one version of the weights."""
        requests = [row.request for row in self._rows.values() if row.request.member == member]
        self._abort([name for name, row in self._rows.items() if row.request.member == member])
        yield
        self._engine.reset_prefix_cache()  # it was computed with the old weights
        self._versions[member] = version
        self.add(requests)

    def step(self) -> list[SampleResult]:
        """Sample one token of every request; returns finished requests."""
        finished, stopped_early = [], []
        for output in self._engine.step() if self._rows else ():
            row = self._rows.get(output.request_id)
            if row is None:
                continue
            delta = output.outputs[0]
            stopped = False
            for token, logprobs in zip(delta.token_ids, delta.logprobs, strict=True):
                row.tokens.append(int(token))
                row.logprobs.append(float(logprobs[token].logprob))
                if stopped := self._stops(row.request.sampling.stop).is_finished(np.array(row.tokens)):
                    break
            if stopped or output.finished:
                version, tokens, logprobs = self._versions[row.request.member], tuple(row.tokens), tuple(row.logprobs)
                finished.append(SampleResult(row.request.request_id, tokens, logprobs, stopped, version))
                del self._rows[output.request_id]
                if not output.finished:
                    stopped_early.append(output.request_id)
        if stopped_early:
            self._engine.abort_request(stopped_early)
        return finished

    def _abort(self, names: list[str]) -> None:
        if names:
            self._engine.abort_request(names)
        for name in names:
            del self._rows[name]


def _engine_arguments(config: ServerConfig) -> dict[str, Any]:
    on_cpu = config.device == "cpu"
    lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": next(r for r in LORA_RANKS if r >= config.lora_rank)}
    return {
        "model": config.checkpoint,
        "skip_tokenizer_init": True,
        "dtype": config.dtype,
        "max_model_len": config.context,
        "max_num_seqs": config.max_batch,
        "enforce_eager": on_cpu,
        **({} if on_cpu else {"max_num_batched_tokens": MAX_PREFILL_TOKENS}),
        "gpu_memory_utilization": config.memory,
        "enable_prefix_caching": True,
        "logits_processors": [SeededLogitsProcessor],
        "logprobs_mode": "processed_logits",
        "worker_extension_cls": "tacit.engines.sharded.vllm_backend.WeightReceiver",
        "async_scheduling": False,  # the noise of a token depends on the number of tokens so far
        "disable_log_stats": True,
        "seed": 0,
        **(lora if config.lora_rank else {}),
    }
