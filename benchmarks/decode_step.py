"""Latency of one decode step: milliseconds per step of the whole batch, with and without LoRA adapters.

    python benchmarks/decode_step.py                                     # a tiny random model, 4 rows
    python benchmarks/decode_step.py --rank 16 --rows 16,64 --before 523 --profile     # on a GPU: shapes of Qwen2.5-1.5B

Weights are random. Adapters are on all linear layers, with nonzero B. As in the sampler, a step runs as a CUDA graph and
includes drawing the token. `apart` is the mean absolute difference in log-probability between the step and transformers'
forward pass in float32, both with adapters. `--profile` lists the kernels of a step with adapters.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import tacit.engines.local  # noqa: F401  (before torch: it sets how torch waits)

# isort: split
import torch
from peft import LoraConfig, get_peft_model
from train_step import synchronize
from transformers import Qwen2Config, Qwen2ForCausalLM

from tacit.core.protocols import Sampling
from tacit.engines.local.fast.cuda_graphs import CudaGraphs
from tacit.engines.local.fast.kv_cache import KeyValueCache
from tacit.engines.local.fast.llama import LlamaForward
from tacit.engines.local.sampling import sample_tokens

LARGE = {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
LARGE |= {"num_attention_heads": 12, "num_key_value_heads": 2}
SMALL = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def random_model(device: torch.device, rank: int) -> Any:
    """A random model with nonzero adapters; bfloat16 on a GPU, else float32."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = Qwen2Config(**(LARGE if device.type == "cuda" else SMALL), tie_word_embeddings=False, max_position_embeddings=4096)
    torch.set_default_dtype(dtype)
    with device:
        model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    peft = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=LAYERS)).eval()
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            parameter.data = parameter.data.to(dtype)
            if "lora_B" in name:
                parameter.normal_(0, 0.01)
    return peft


class Steps:
    """Decode steps of a model with `before` tokens per slot in the KV cache."""

    def __init__(self, forward: LlamaForward, tokens_BT: torch.Tensor) -> None:
        self._forward, self._tokens_B = forward, tokens_BT[:, -1].contiguous()
        rows, before = len(tokens_BT), tokens_BT.shape[1] - 1
        self._capacity = 1 << before.bit_length()
        self._cache = KeyValueCache(forward.shape)
        self._cache.resize(rows, self._capacity)
        forward.extend_rope(self._capacity)
        self._positions_B = torch.full((rows,), before, device=forward.device)
        self._uniform_B = torch.rand(rows, device=forward.device)
        for part in torch.arange(rows, device=forward.device).split(32):
            slots = slice(int(part[0]), int(part[-1]) + 1)
            last = torch.full((len(part),), before - 1, device=forward.device)
            forward.prefill_padded(
                tokens_BT[slots, :-1], last, None, lambda depth, k, v, slots=slots: self._cache.store_padded(depth, slots, k, v)
            )

    def logits(self) -> torch.Tensor:
        return self._forward.decode_step(self._tokens_B, self._positions_B, self._cache, self._capacity)

    def __call__(self) -> None:
        sample_tokens(self.logits(), self._uniform_B, Sampling())


def milliseconds(step: Callable[[], None], repeats: int, times: int = 20) -> float:
    """Median milliseconds per step, over `repeats` rounds of `times` steps."""
    found = []
    for _ in range(repeats + 1):  # the first round warms up
        synchronize()
        began = time.perf_counter()
        for _ in range(times):
            step()
        synchronize()
        found.append(1000 * (time.perf_counter() - began) / times)
    return statistics.median(found[1:])


def mean_difference(logits: torch.Tensor, peft: Any, tokens_BT: torch.Tensor) -> float:
    wide = copy.deepcopy(peft).float()
    expected = torch.cat([wide(part, logits_to_keep=1).logits[:, -1] for part in tokens_BT.split(16)])
    return float((logits.float().log_softmax(-1) - expected.log_softmax(-1)).abs().mean())


def show_kernels(step: Callable[[], None], steps: int = 10) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = sorted(
        (e for e in profiler.key_averages() if e.self_device_time_total > 0), key=lambda e: -e.self_device_time_total
    )
    for e in events[:16]:
        each = e.self_device_time_total / e.count
        print(f"    {e.self_device_time_total / steps:8.1f} µs  {e.count / steps:5.0f} × {each:6.2f} µs  {e.key[:90]}")


def parse() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if gpu else "cpu")
    parser.add_argument("--rank", type=int, default=16, help="adapter rank (default %(default)s)")
    parser.add_argument("--rows", default="16,64" if gpu else "4", help="comma-separated batch sizes (default %(default)s)")
    parser.add_argument("--before", type=int, default=523 if gpu else 23, help="cached tokens per row (default %(default)s)")
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed rounds of 20 steps; the median counts (default %(default)s)"
    )
    parser.add_argument("--profile", action="store_true", help="on a GPU, list the kernels of a step with adapters")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    args = parse()
    device, on_gpu = torch.device(args.device), args.device == "cuda"
    peft = random_model(device, args.rank)
    forwards = {"adapters": LlamaForward(peft.get_base_model())}
    with peft.disable_adapter():
        forwards["none"] = LlamaForward(peft.get_base_model())
    name = torch.cuda.get_device_name() if on_gpu else "cpu"
    weights = sum(parameter.numel() for parameter in peft.parameters())
    print(f"{weights:,} weights, adapters of rank {args.rank}, {args.before} tokens before, {name}")
    result: dict[str, Any] = {"benchmark": "decode_step", "device": name, "rank": args.rank, "before": args.before, "rows": {}}
    for rows in map(int, args.rows.split(",")):
        tokens_BT = torch.randint(0, peft.config.vocab_size, (rows, args.before + 1), device=device)
        steps = {which: Steps(forward, tokens_BT) for which, forward in forwards.items()}
        gap = mean_difference(steps["adapters"].logits(), peft, tokens_BT)
        graphs = CudaGraphs(enabled=on_gpu)
        run = {which: partial(graphs.run, which, step, lambda: lambda: None) for which, step in steps.items()}
        found = {which: milliseconds(step, args.repeats) for which, step in run.items()}
        result["rows"][rows] = {"ms": found, "apart": gap}
        print(
            f"  {rows:>4} rows: {found['adapters']:.3f} ms, {found['none']:.3f} without adapters; apart {gap:.5f}", flush=True
        )
        if args.profile and on_gpu:
            show_kernels(run["adapters"])
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
