"""Rollout speed of our sampler and of transformers' `generate`, with equal model, prompts, lengths and threads, in one run.

    python benchmarks/rollout.py                               # a random Llama of about a million parameters
    python benchmarks/rollout.py --model PATH --batch 256 --prompt-tokens 200 --new-tokens 32 --json
    python benchmarks/rollout.py --model tiny-base --only short,ragged
    python benchmarks/rollout.py --model PATH --peer vllm --vllm DIRECTORY   # vLLM from this directory

Tokens per second are new tokens over wall time, prefill included. There are no stop tokens, so all methods sample the same
number of tokens. Ours also returns log-probabilities and text; `generate` does not.
The grouped case has 8 identical prompts per group, as in group-relative methods; ours prefills each prompt once.

The cases short, ragged and growing are whole rollouts of several turns, in groups of 8, with completions of different lengths:
3 to 8 tokens, as actions of a tiny policy; 8 to 512, as from a model with thoughts. In the growing case, each prompt is the
previous one plus 60 tokens; `read_anew` is the same without the prefix cache. `tacit` schedules episodes independently;
`lockstep` samples one batch per turn. The worlds take no time.

vLLM runs afterwards in its own process. It samples the same number of tokens for the same prompts, with log-probabilities, and
schedules episodes independently. If it is missing or fails, that is reported.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from paces import Growing, Ragged, play, whole_rollout
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from vllm_peer import Work, beside_vllm, work_of

from tacit.core.protocols import Request, Sampling
from tacit.engines.local.scheduler import LocalSampler
from tacit.engines.models.bases import find_checkpoint

GROUP = 8
CASES = ("distinct", "grouped", "short", "ragged", "growing")
LENGTHS = {"short": (3, 8), "ragged": (8, 512), "growing": (8, 32)}
"""minimum and maximum completion tokens of the whole-rollout cases"""


def random_llama() -> tuple[Any, Any]:
    """A random Llama with about a million parameters, and a tokenizer with 1,024 words."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(config.vocab_size)}, unk_token="w0"))
    return LlamaForCausalLM(config), PreTrainedTokenizerFast(tokenizer_object=words)


def load(path: str | None, device: str, dtype: torch.dtype) -> tuple[Any, Any]:
    if path is None:
        model, tokenizer = random_llama()
    else:
        path = find_checkpoint(path)
        model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        tokenizer.eos_token = None
    # no stop token: both methods sample all tokens of every row
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
    model.config.eos_token_id = None
    return model.to(device=device, dtype=dtype).eval(), tokenizer


def ours(sampler: LocalSampler, prompts: np.ndarray, new_tokens: int) -> Callable[[int], int]:
    def run(repeat: int) -> int:
        requests = [Request(prompt, seed=1000 * repeat + i) for i, prompt in enumerate(prompts)]
        return sum(len(c.tokens) for c in sampler.sample(requests, Sampling(max_tokens=new_tokens)))

    return run


def generate(model: Any, device: str, prompts: np.ndarray, new_tokens: int, **options: Any) -> Callable[[int], int]:
    tokens = torch.from_numpy(prompts).to(device)
    mask = torch.ones_like(tokens)

    def run(repeat: int) -> int:
        torch.manual_seed(repeat)
        output = model.generate(tokens, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=new_tokens, **options)
        return output[:, tokens.shape[1] :].numel()

    return run


def measure(methods: dict[str, Callable[[int], int]], repeats: int, device: str) -> dict[str, float | None]:
    """Median tokens per second of each method; None if it fails. Methods alternate, so that other load affects all alike."""
    speeds: dict[str, list[float]] = {name: [] for name in methods}
    failed: set[str] = set()
    for repeat in range(-3, repeats):  # warm-up: libraries, compilation, CUDA graphs (recorded the third time)
        for name, run in methods.items():
            if name in failed:
                continue
            synchronize(device)
            start = time.perf_counter()
            try:
                count = run(repeat + 2)
            except Exception as error:
                print(f"{name} does not run here: {type(error).__name__}: {str(error)[:200]}")
                failed.add(name)
                continue
            synchronize(device)
            if repeat >= 0:
                speeds[name].append(count / (time.perf_counter() - start))
    return {name: statistics.median(values) if values else None for name, values in speeds.items()}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def compare(model: Any, sampler: LocalSampler, device: str, prompts: np.ndarray, args: argparse.Namespace) -> dict[str, Any]:
    methods = {
        "tacit": ours(sampler, prompts, args.new_tokens),
        "generate": generate(model, device, prompts, args.new_tokens),
    }
    if device == "cuda":
        methods["generate_static"] = generate(
            model, device, prompts, args.new_tokens, cache_implementation="static", disable_compile=True
        )
        if args.compiled:
            methods["generate_static_compiled"] = generate(
                model, device, prompts, args.new_tokens, cache_implementation="static"
            )
    return {"tokens_per_s": measure(methods, args.repeats, device)}


def ratios(speeds: dict[str, float | None]) -> dict[str, float]:
    mine = speeds["tacit"]
    return {name: mine / speed for name, speed in speeds.items() if name != "tacit" and mine and speed}


def beside(works: dict[str, Work], result: dict[str, Any], args: argparse.Namespace) -> None:
    """Add vLLM's new tokens per second on the same works; None if it does not run."""
    if args.model is None or args.device != "cuda":
        found = {name: {"failed": "it needs a GPU and a checkpoint directory as --model"} for name in works}
    else:
        found = beside_vllm(find_checkpoint(args.model), works, args.vllm, args.repeats)
    for name, peer in found.items():
        if "failed" in peer:
            print(f"vllm does not run here ({name}): {peer['failed']}")
        speed = None if "failed" in peer else peer["tokens"] / statistics.median(peer["seconds"])
        result[name]["tokens_per_s"]["vllm"] = speed


def make_policy(case: str, vocabulary: int, sampler: LocalSampler, args: argparse.Namespace) -> tuple[Ragged, int]:
    """(policy, number of episodes)"""
    policy = (Growing if case == "growing" else Ragged)(sampler, vocabulary, args.prompt_tokens, LENGTHS[case])
    return policy, args.batch if case == "short" else args.episodes


def compare_paces(case: str, policy: Ragged, episodes: int, args: argparse.Namespace) -> dict[str, Any]:
    methods = {
        "tacit": whole_rollout(policy, episodes, GROUP, args.turns, lockstep=False),
        "lockstep": whole_rollout(policy, episodes, GROUP, args.turns, lockstep=True),
    }
    if isinstance(policy, Growing):
        methods["read_anew"] = whole_rollout(policy.anew(), episodes, GROUP, args.turns, lockstep=False)
    about = {"episodes": episodes, "turns": args.turns, "completion_tokens": LENGTHS[case]}
    return {**about, "tokens_per_s": measure(methods, args.repeats, args.device)}


@torch.inference_mode()
def logprob_error(model: Any, sampler: LocalSampler, device: str, prompts: np.ndarray, new_tokens: int) -> dict[str, Any]:
    """Absolute differences of the sampler's log-probabilities from a plain forward pass in the same precision. If that is not
    float32, also of both from a float32 pass: both round, so either may be the one with the larger error."""
    completions = sampler.sample([Request(p, seed=i) for i, p in enumerate(prompts)], Sampling(max_tokens=new_tokens))
    ours = np.stack([c.logprobs for c in completions])
    tokens = torch.from_numpy(np.stack([c.tokens for c in completions])).to(device)
    rows = torch.cat([torch.from_numpy(prompts).to(device), tokens], dim=1)

    def forward(model: Any) -> np.ndarray:
        logits = model(rows, logits_to_keep=new_tokens + 1).logits[:, :-1].float()
        return logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0].cpu().numpy()

    plain = forward(model)
    found: dict[str, Any] = differences(ours, plain)
    if model.dtype != torch.float32:
        exact = forward(copy.deepcopy(model).float())
        found["to_float32"] = {"tacit": differences(ours, exact), "plain": differences(plain, exact)}
    return found


def differences(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    error = np.abs(found - expected)
    return {"mean": float(error.mean()), "max": float(error.max())}


def show_error(error: dict[str, Any]) -> None:
    describe = "mean {mean:.1e}, max {max:.1e}".format
    print("  log-probabilities against a plain forward pass:", describe(**error))
    for name, found in error.get("to_float32", {}).items():
        print(f"    against float32, {name}:", describe(**found))


def show(case: str, speeds: dict[str, float | None], only: str | None = None) -> None:
    found = ratios(speeds)
    for name, speed in speeds.items():
        if speed is not None and only in (None, name):
            note = f"  tacit is {found[name]:.2f}×" if name in found else ""
            print(f"  {case:9s} {name:25s} {speed:10,.0f} tokens/s{note}", flush=True)


def parse() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint directory or hub id; without it a random Llama of about 1M parameters")
    parser.add_argument("--batch", type=int, default=256 if gpu else 64, help="rows (default %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=200 if gpu else 64, help="(default %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=32, help="(default %(default)s)")
    parser.add_argument("--turns", type=int, default=8, help="turns per episode in whole rollouts (default %(default)s)")
    parser.add_argument(
        "--episodes",
        type=int,
        default=256 if gpu else 16,
        help="episodes of the ragged and growing cases (default %(default)s)",
    )
    parser.add_argument("--only", default=",".join(CASES), help="cases to measure (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds; the median counts (default %(default)s)")
    parser.add_argument("--threads", type=int, help="CPU threads of both methods (default: torch's)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16" if gpu else "float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if gpu else "cpu")
    parser.add_argument("--compiled", action="store_true", help="on a GPU, also time static `generate` with torch.compile")
    parser.add_argument("--peer", choices=("vllm",), help="also time vLLM")
    parser.add_argument("--vllm", metavar="DIRECTORY", help="directory of vLLM, if it is not installed")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(CASES):
        parser.error(f"--only: unknown case {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}")
    return args


def main() -> None:
    args = parse()
    if args.threads:
        torch.set_num_threads(args.threads)
    model, tokenizer = load(args.model, args.device, getattr(torch, args.dtype))
    rng = np.random.default_rng(0)
    groups = -(-args.batch // GROUP)
    distinct = rng.integers(0, model.config.vocab_size, (args.batch, args.prompt_tokens))
    grouped = np.repeat(distinct[:groups], GROUP, axis=0)[: args.batch]
    sampler = LocalSampler(model, tokenizer, args.device, max_batch=max(args.batch, args.episodes))
    result: dict[str, Any] = {
        "benchmark": "rollout",
        "model": args.model or "random-llama-1m",
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "dtype": args.dtype,
        "threads": torch.get_num_threads(),
        "batch": args.batch,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
    }
    print(", ".join(f"{key} {value}" for key, value in result.items()))
    result["logprob_error"] = logprob_error(model, sampler, args.device, distinct[:16], args.new_tokens)
    show_error(result["logprob_error"])
    prompts = {"distinct": distinct, "grouped": grouped}
    works: dict[str, Work] = {}
    for case in args.only.split(","):
        if case in prompts:
            result[case] = compare(model, sampler, args.device, prompts[case], args)
            works[case] = [[(prompt.tolist(), args.new_tokens)] for prompt in prompts[case]]
        else:
            policy, episodes = make_policy(case, model.config.vocab_size, sampler, args)
            result[case] = compare_paces(case, policy, episodes, args)
            works[case] = work_of(play(policy, episodes, GROUP, args.turns)) if args.peer else []
        show(case, result[case]["tokens_per_s"])
    if args.peer == "vllm":
        sampler.release()
        beside(works, result, args)
        for case in works:
            show(case, result[case]["tokens_per_s"], only="vllm")
    for case in works:
        result[case]["ratio"] = ratios(result[case]["tokens_per_s"])
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
