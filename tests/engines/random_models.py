"""Tiny random models of every family and a byte-level tokenizer, for tests of the local engine's sampler."""

from __future__ import annotations

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tacit.core.protocols import Request
from tacit.engines.local.fast.cuda_graphs import CudaGraphs
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import LlamaForward
from tacit.engines.local.fast.llama_decoding import LlamaDecoder
from tacit.engines.local.scheduler import LocalSampler

END = 256
VOCABULARY = 260
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": None,
}


def _llama3_rope() -> dict:
    return {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }


def make_model(family: str):
    torch.manual_seed(0)
    without_kv = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
    makers = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
        "llama-untied-bias": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
        "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=_llama3_rope())),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES)),
        "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=128,
                n_embd=32,
                n_layer=3,
                n_head=4,
                initializer_range=0.3,
                eos_token_id=END,
                bos_token_id=None,
                pad_token_id=END,
            )
        ),
        "gpt-neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**without_kv)),
    }
    model = makers[family]().eval()
    if family in ("qwen2", "qwen3", "llama-untied-bias"):  # biases and norms start trivial: make them matter
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data += 0.3 * torch.randn_like(parameter)
    return model


FAMILIES = ["llama", "llama-untied-bias", "llama3-rope", "qwen2", "qwen3", "mistral", "mistral-sliding", "gpt2", "gpt-neox"]
LEAN = FAMILIES[:6]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, an end token, and a few unused ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<end>")
    fast.add_special_tokens({"additional_special_tokens": ["<a>", "<b>", "<c>"]})
    assert fast.eos_token_id == END and len(fast) == VOCABULARY
    return fast


def make_prompts(count: int, seed: int = 0, low: int = 3, high: int = 20) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, rng.integers(low, high)) for _ in range(count)]


def make_requests(prompts, **options) -> list[Request]:
    return [Request(prompt, seed=100 + i, **options) for i, prompt in enumerate(prompts)]


def plain_logprobs(model, prompt, tokens, temperature: float = 1.0) -> np.ndarray:
    """Every token's log-probability by one forward pass over prompt and completion, unbatched."""
    with torch.no_grad():
        logits = model(torch.from_numpy(np.concatenate([prompt, tokens]))[None]).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)[torch.arange(len(tokens)), torch.from_numpy(tokens)].numpy()


def with_adapter(model):
    """The model with a nonzero LoRA adapter."""
    targets = ["q_proj", "v_proj", "down_proj"]
    return get_peft_model(model, LoraConfig(r=4, target_modules=targets, init_lora_weights=False)).eval().get_base_model()


class Recording:
    """A CUDA graph without CUDA: replays the captured step."""

    def __init__(self, step):
        self.replay = step


def cache_as_on_a_gpu(monkeypatch) -> None:
    """Token-major KV cache, as on a GPU."""
    init = KeyValueCache.__init__

    monkeypatch.setattr(KeyValueCache, "__init__", lambda self, shape: init(self, shape, head_major=False))
    monkeypatch.setattr(LlamaForward, "can_use_cpu_step", False)


def as_on_a_gpu(model, tokenizer, monkeypatch, varlen=False, **options) -> LocalSampler:
    """A sampler with fixed shapes and captured steps, as on a GPU; `varlen`: also prefills without padding. Checks that no
    graph is replayed after the weights it reads have moved."""

    def record(self, step):
        step()  # the warm-up; the caller undoes it

        def again():
            decoder = sampler.llama_decoder
            assert not decoder.uses_graphs or decoder.addresses == decoder.forward.addresses(), "its tensors have moved"
            step()

        return Recording(again)

    monkeypatch.setattr(CudaGraphs, "capture", record)
    sampler = LocalSampler(model, tokenizer, "cpu", **options)
    sampler.llama_decoder = LlamaDecoder(model, prefill_tokens=None if varlen else 50, fixed_shapes=True, varlen=varlen)
    sampler.llama_decoder.uses_graphs = True
    sampler.llama_decoder.refresh(force=True)
    return sampler
