"""Ablation of the local engine's fast path: time of an iteration on a GPU without each optimization.

    python benchmarks/ablation.py --tokenizer models/smollm2 --shapes 135M,1.5B,7B --json ablation.json

Models have random weights. For each piece, the model is loaded without it and runs a warm-up and `--repeats` iterations of
benchmarks/iteration.py; the median counts. `nothing` is measured first and last, to show the noise. Pieces are capability
probes of tacit/engines/local/fast (see contract.md), `cuda_graphs`, and `all` (`--engine.fast off`).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from iteration import Shape, iterate
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tacit.engines.local.fast import kernels
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings

PIECES = (
    "cuda_graphs",
    "has_decode_kernel",
    "has_swiglu_kernels",
    "has_rms_norm_kernel",
    "has_rope_qkv_kernel",
    "has_rope_cache_kernel",
    "can_compile",
    "all",
)
# hidden, intermediate, layers, heads, KV heads, vocabulary, tied embeddings
SHAPES = {
    "135M": (576, 1536, 30, 9, 3, 49152, True),
    "1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "7B": (3584, 18944, 28, 28, 4, 152064, False),
}
LORA = {"7B": 16}
"""adapter rank, for shapes whose full optimizer state does not fit in memory"""
EPISODES = {"135M": 128, "1.5B": 64, "7B": 32}
"""episodes per iteration, in groups of 8"""


def make(shape: str, tokenizer: str, directory: Path, device: str) -> Path:
    hidden, inner, layers, heads, kv_heads, vocabulary, tied = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=4096,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        LlamaForCausalLM(config).save_pretrained(directory)
    torch.set_default_dtype(torch.float32)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)
    return directory


def measure(model: Path, without: str, size: Shape, settings: EngineSettings, repeats: int) -> dict[str, float]:
    """Median seconds of each phase of an iteration without this piece."""
    kernels.disabled = {without} & set(PIECES)
    policy = load_policy(str(model), replace(settings, fast="off" if without == "all" else "auto"))
    iterate(policy, replace(size, turns=max(1, size.turns // 4)), 0)
    rounds = [iterate(policy, size, 1 + number)[0] for number in range(repeats)]
    phases = {phase: statistics.median(seconds[phase] for seconds in rounds) for phase in rounds[0]}
    return phases | {"iteration": sum(phases.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="directory with a tokenizer")
    parser.add_argument("--shapes", default="135M,1.5B,7B")
    parser.add_argument("--pieces", default=",".join(PIECES))
    parser.add_argument("--turns", type=int, default=8, help="mean turns per episode (default %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=480, help="mean tokens per prompt (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="timed iterations (default %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=60, help="start no measurement after this time (default %(default)s)")
    parser.add_argument("--json", type=Path, help="JSON file for all times, updated after each measurement")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    found: dict[str, dict[str, dict[str, float] | str]] = {}
    print("| shape | without | rollout s | update s | iteration s | slower by |\n|---|---|---|---|---|---|", flush=True)
    for shape in args.shapes.split(","):
        rows = found.setdefault(shape, {})
        size = Shape(EPISODES[shape], args.turns, args.prompt_tokens, new_tokens=8)
        settings = EngineSettings(device=args.device, lora_rank=LORA.get(shape, 0))
        with tempfile.TemporaryDirectory() as directory:
            model = make(shape, args.tokenizer, Path(directory), args.device)
            for piece in ("nothing", *args.pieces.split(","), "nothing again"):
                if time.monotonic() > end:
                    print(f"| {shape} | {piece} | not measured: out of time | | | |")
                    continue
                try:
                    seconds = rows[piece] = measure(model, piece, size, settings, args.repeats)
                except Exception as error:
                    rows[piece] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
                    print(f"| {shape} | {piece} | {rows[piece]} | | | |", flush=True)
                    continue
                finally:
                    gc.collect()
                    torch.cuda.empty_cache()
                first = rows["nothing"]
                slower = f"{100 * (seconds['iteration'] / first['iteration'] - 1):+.1f}%" if isinstance(first, dict) else "–"
                times = " | ".join(f"{seconds[phase]:.2f}" for phase in ("rollout", "update", "iteration"))
                print(f"| {shape} | {piece} | {times} | {slower} |", flush=True)
                if args.json:
                    args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
