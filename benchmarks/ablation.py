"""What each fast piece of the local engine gains: time of a whole iteration with and without it, on a GPU.

    python benchmarks/ablation.py --tokenizer models/smollm2 --shapes 135M,1.5B,7B --json ablation.json

Models have random weights. Each measurement is a process of its own (benchmarks/iteration.py): a warm-up, then
`--repeats` iterations, of which the median counts. `nothing` is measured first and last; the two show the noise. Pieces are
capability probes of tacit/engines/local/fast (see contract.md), `cuda_graphs`, and `all` (`--engine.fast off`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

PIECES = (
    "cuda_graphs",
    "has_decode_kernel",
    "has_chunk_kernel",
    "has_mixed_kernel",
    "has_varlen_kernels",
    "has_logprob_kernels",
    "has_sampling_kernel",
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
"""rank of adapters, where optimizer states of all weights would not fit"""


def make(shape: str, tokenizer: str, directory: Path) -> Path:
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
        torch_dtype="bfloat16",
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(directory)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)
    return directory


def measure(model: Path, without: str, rank: int, args: argparse.Namespace) -> dict[str, float] | str:
    command = [sys.executable, str(Path(__file__).with_name("iteration.py")), "--model", str(model), "--alone", "--json"]
    command += ["--lora-rank", str(rank), "--repeats", str(args.repeats), "--without", without]
    command += ["--episodes", str(args.episodes), "--turns", str(args.turns)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no output"])[-1]
    return json.loads(done.stdout.splitlines()[-1])["measured"][0]["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="directory with a tokenizer")
    parser.add_argument("--shapes", default="135M,1.5B,7B")
    parser.add_argument("--pieces", default=",".join(PIECES))
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all times here, after each measurement")
    args = parser.parse_args()
    found: dict[str, dict[str, dict[str, float] | str]] = {}
    print("| shape | without | rollout s | update s | iteration s | slower by |\n|---|---|---|---|---|---|", flush=True)
    for shape in args.shapes.split(","):
        rows = found.setdefault(shape, {})
        with tempfile.TemporaryDirectory() as directory:
            model = make(shape, args.tokenizer, Path(directory))
            for piece in ("nothing", *args.pieces.split(","), "nothing again"):
                seconds = measure(model, "" if piece.startswith("nothing") else piece, LORA.get(shape, 0), args)
                rows[piece] = seconds
                if isinstance(seconds, str):
                    print(f"| {shape} | {piece} | {seconds} | | | |", flush=True)
                    continue
                first = rows["nothing"]
                slower = f"{100 * (seconds['iteration'] / first['iteration'] - 1):+.1f}%" if isinstance(first, dict) else "–"
                times = " | ".join(f"{seconds[phase]:.2f}" for phase in ("rollout", "update", "iteration"))
                print(f"| {shape} | {piece} | {times} | {slower} |", flush=True)
                if args.json:
                    args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
