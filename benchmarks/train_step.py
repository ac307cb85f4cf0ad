"""Training speed: our update and a transformers step, and a GRPO step of ours and of TRL, in one run.

    python benchmarks/train_step.py                       # a tiny Llama of about a million parameters
    python benchmarks/train_step.py --model PATH --json   # a checkpoint

Step: the same rows (ragged prompts and completions), the same policy-gradient loss, one AdamW step each. The plain
step pads all rows into one batch and computes all logits, as a simple script does; if that does not fit, into two, four, …
batches, which is reported. The packed step is the strong peer: rows without padding in sequences of up to 32,768 tokens (2,048
on a CPU), with FlashAttention if installed, else flex attention (on a CPU, torch's own); logits of completions only, in
recomputed chunks. Tokens per second exclude padding. A peer that fails is reported; the others continue.
GRPO: 2 prompts × 8 completions of 64 tokens, sampled, rewarded and trained on, without a KL term (TRL's default).
Both sides run in one process with the same threads; TRL must be installed. On ARM, oneDNN keeps the thread count from the start
of the process, so the script restarts itself with OMP_NUM_THREADS set. On a shared machine, use --clock cpu with one thread:
CPU time is then close to the wall time on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tacit.engines.local  # noqa: F401  (before torch: sets its waiting and memory options, also for the peers)

# isort: split
import numpy as np
import torch

from tacit.core.credit import Batch
from tacit.core.protocols import Request, Sampling
from tacit.engines.local.policy import LocalPolicy, load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TINY_SIZES, tiny_checkpoint
from tacit.losses.surrogates import ClippedSurrogate

PROMPTS, COMPLETIONS_EACH, NEW_TOKENS = 2, 8, 64
LR = 1e-6
WARM_UP = 3
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def world_texts() -> list[str]:
    """Texts to train a tiny tokenizer."""
    n = random.Random(0).randint
    return [
        f"numbers: {n(1, 99)} {n(1, 99)} {n(1, 99)} | target: {n(10, 999)}\nop(*, {n(1, 9)}, {n(1, 99)})" for _ in range(999)
    ]


def ragged_batch(rows: int, prompt: int, completion: int, vocabulary: int) -> Batch:
    """A batch with random tokens, whose lengths vary by half around the means."""
    rng = np.random.default_rng(0)

    def tokens(mean: int) -> list[np.ndarray]:
        return [rng.integers(3, vocabulary, size=n) for n in rng.integers(mean // 2, mean + mean // 2 + 1, size=rows)]

    batch = Batch.imitation(tokens(prompt), tokens(completion))
    advantages = [rng.normal(size=len(c)) for c in batch.completions]
    behavior = [np.full(len(c), -np.log(vocabulary)) for c in batch.completions]
    return Batch(**{**batch.__dict__, "advantages": advantages, "behavior": behavior})


class PlainStep:
    """Padded rows, all logits, cross-entropy weighted by the advantages, AdamW. As many rows at once as fit."""

    def __init__(self, hf: Any, batch: Batch) -> None:
        self._hf, self._batch, self.rows = hf, batch, len(batch)
        self._optimizer = torch.optim.AdamW(hf.parameters(), lr=LR)

    def __call__(self) -> None:
        while True:
            try:
                for first in range(0, len(self._batch), self.rows):
                    self._gradient(range(first, min(first + self.rows, len(self._batch))))
                break
            except torch.OutOfMemoryError:
                if self.rows == 1:
                    raise
            self._optimizer.zero_grad()
            self.rows = -(-self.rows // 2)
            torch.cuda.empty_cache()
        torch.nn.utils.clip_grad_norm_(self._hf.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _gradient(self, rows: range) -> None:
        batch, device = self._batch, next(self._hf.parameters()).device
        width = max(len(batch.prompts[i]) + len(batch.completions[i]) for i in rows)
        ids = np.zeros((len(rows), width), np.int64)
        mask, weights = np.zeros_like(ids), np.zeros((len(rows), width), np.float32)
        for row, i in enumerate(rows):
            p, c = batch.prompts[i], batch.completions[i]
            ids[row, : len(p) + len(c)] = np.concatenate([p, c])
            mask[row, : len(p) + len(c)] = 1
            weights[row, len(p) : len(p) + len(c)] = batch.advantages[i]
        ids_RS, mask_RS, weights_RS = (torch.from_numpy(column).to(device) for column in (ids, mask, weights))
        logits = self._hf(input_ids=ids_RS, attention_mask=mask_RS, use_cache=False).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids_RS[:, 1:].flatten(), reduction="none")
        ((losses * weights_RS[:, 1:].flatten()).sum() / batch.total_tokens).backward()


class PackedStep(PlainStep):
    """Rows packed into sequences without padding; the vocabulary projection of completions only, in recomputed chunks."""

    CHUNK = 4096

    def __call__(self) -> None:
        most = 32768 if torch.cuda.is_available() else 2048
        sizes = [len(p) + len(c) for p, c in zip(self._batch.prompts, self._batch.completions, strict=True)]
        first, used = 0, 0
        for row, size in enumerate([*sizes, most + 1]):
            if used and used + size > most:
                self._gradient(range(first, row))
                first, used = row, 0
            used += size
        torch.nn.utils.clip_grad_norm_(self._hf.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _gradient(self, rows: range) -> None:
        batch, device = self._batch, next(self._hf.parameters()).device
        texts = [np.concatenate([batch.prompts[i], batch.completions[i]]) for i in rows]
        ends = np.cumsum([len(text) for text in texts])
        # A token is predicted from the one before it.
        read = np.concatenate([np.arange(-len(batch.completions[i]), 0) + end for i, end in zip(rows, ends, strict=True)]) - 1
        ids = np.concatenate(texts)
        columns = (ids, np.concatenate([np.arange(len(text)) for text in texts]), read, ids[read + 1])
        ids_N, positions_N, read_T, targets_T = (torch.from_numpy(column).to(device) for column in columns)
        weights_T = torch.from_numpy(np.concatenate([batch.advantages[i] for i in rows]).astype(np.float32)).to(device)
        model = self._hf.get_base_model() if hasattr(self._hf, "get_base_model") else self._hf
        hidden_TD = model.model(input_ids=ids_N[None], position_ids=positions_N[None], use_cache=False)[0][0][read_T]

        def loss(hidden: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            losses = torch.nn.functional.cross_entropy(model.lm_head(hidden).float(), targets, reduction="none")
            return (losses * weights).sum()

        chunks = zip(*(column.split(self.CHUNK) for column in (hidden_TD, targets_T, weights_T)), strict=True)
        total = sum(torch.utils.checkpoint.checkpoint(loss, *chunk, use_reentrant=False) for chunk in chunks)
        (total / batch.total_tokens).backward()


def turns(steps: dict[str, Callable[[], Any]], args: argparse.Namespace, warm_up: int = WARM_UP) -> dict[str, float | None]:
    """Median seconds of each step; None if it fails. Steps alternate, so that other load affects all alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    failed: set[str] = set()
    now = CLOCKS[args.clock]
    for repeat in range(args.repeats + warm_up):
        for name, step in steps.items():
            if name in failed:
                continue
            synchronize()
            start = now()
            try:
                step()
                synchronize()
            except Exception as error:
                if name == "tacit":
                    raise
                print(f"{name} does not run here: {type(error).__name__}: {str(error)[:200]}")
                failed.add(name)
            if repeat >= warm_up:
                times[name].append(now() - start)
    return {name: None if name in failed else statistics.median(values) for name, values in times.items()}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def plain_model(path: str, policy: LocalPolicy, packed: bool = False) -> Any:
    """The checkpoint in transformers, with the policy's dtype and device, and peft adapters if the policy has adapters."""
    from transformers import AutoModelForCausalLM

    settings = policy.engine.settings
    attention = "sdpa"
    if packed and policy.engine.device.type == "cuda":
        attention = "flash_attention_2" if importlib.util.find_spec("flash_attn") else "flex_attention"
    hf: Any = AutoModelForCausalLM.from_pretrained(path, dtype=policy.engine.model.hf.dtype, attn_implementation=attention)
    if settings.lora_rank:
        from peft import LoraConfig, get_peft_model

        hf = get_peft_model(hf, LoraConfig(r=settings.lora_rank, target_modules=list(settings.lora_targets)))
    return hf.to(policy.engine.device).train()


def compare_steps(policy: LocalPolicy, args: argparse.Namespace) -> dict[str, Any]:
    batch = ragged_batch(args.rows, args.prompt_tokens, args.new_tokens, policy.engine.model.vocabulary)
    losses = [ClippedSurrogate()]
    plain = PlainStep(plain_model(args.path, policy), batch)
    packed = PackedStep(plain_model(args.path, policy, packed=True), batch)
    seconds = turns({"tacit": lambda: policy.update(batch, losses, LR), "transformers": plain, "packed": packed}, args)
    tokens = sum(len(p) + len(c) for p, c in zip(batch.prompts, batch.completions, strict=True))
    ours, theirs, strong = seconds["tacit"], seconds["transformers"], seconds["packed"]
    return {
        "rows": args.rows,
        "plain_rows": plain.rows,
        "tokens": tokens,
        "tokens_per_s": {name: tokens / s for name, s in seconds.items() if s},
        "ratio": theirs / ours if ours and theirs else None,
        "ratio_packed": strong / ours if ours and strong else None,
    }


def reward(texts: list[str]) -> np.ndarray:
    """An arbitrary reward that differs between completions."""
    return np.array([(sum(text.encode()) % 17) / 17 for text in texts])


def grpo_step(policy: LocalPolicy, prompts: list[str]) -> Callable[[], None]:
    count = 0

    def run() -> None:
        nonlocal count
        tokens = [policy.encode_prompt(text) for text in prompts for _ in range(COMPLETIONS_EACH)]
        requests = [Request(p, seed=1000 * count + i) for i, p in enumerate(tokens)]
        done = policy.sample(requests, Sampling(max_tokens=NEW_TOKENS))
        rewards_GK = reward([c.text for c in done]).reshape(PROMPTS, COMPLETIONS_EACH)
        scores = ((rewards_GK - rewards_GK.mean(1, keepdims=True)) / (rewards_GK.std(1, keepdims=True) + 1e-6)).ravel()
        batch = Batch(
            prompts=tokens,
            completions=[c.tokens for c in done],
            behavior=[c.logprobs for c in done],
            advantages=[np.full(len(c.tokens), a) for c, a in zip(done, scores, strict=True)],
            group=np.repeat(np.arange(PROMPTS), COMPLETIONS_EACH),
            trajectory=np.arange(len(done)),
            step=np.zeros(len(done), np.int64),
        )
        policy.update(batch, [ClippedSurrogate()], LR)
        count += 1

    return run


def beside_trl(ours: Callable[[], None], args: argparse.Namespace, prompts: list[str], dtype: torch.dtype) -> dict[str, float]:
    """Median seconds of our step and of TRL's. Ours runs in a callback after each step of TRL, so that they alternate."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    times: dict[str, list[float]] = {"tacit": [], "trl": []}
    now = CLOCKS[args.clock]

    class Turns(TrainerCallback):
        start = 0.0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            synchronize()
            times["trl"].append(now() - self.start)
            start = now()
            ours()
            synchronize()
            times["tacit"].append(now() - start)
            self.start = now()

    tokenizer: Any = AutoTokenizer.from_pretrained(args.path, padding_side="left")
    tokenizer.chat_template = None
    with tempfile.TemporaryDirectory() as directory:
        config = GRPOConfig(
            output_dir=directory,
            per_device_train_batch_size=PROMPTS * COMPLETIONS_EACH,
            num_generations=COMPLETIONS_EACH,
            max_completion_length=NEW_TOKENS,
            max_steps=args.repeats + WARM_UP,
            learning_rate=LR,
            use_cpu=args.device == "cpu",
            bf16=dtype == torch.bfloat16,
            gradient_checkpointing=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(args.path, dtype=dtype),
            args=config,
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: reward(list(completions)).tolist(),
            train_dataset=Dataset.from_dict({"prompt": prompts * 100}),
            callbacks=[Turns()],
        )
        trainer.train()
    return {name: statistics.median(values[WARM_UP:]) for name, values in times.items()}


def compare_grpo(policy: LocalPolicy, args: argparse.Namespace) -> dict[str, Any]:
    prompts = world_texts()[:PROMPTS]
    ours = grpo_step(policy, prompts)
    note = "trl is not installed"
    if importlib.util.find_spec("trl") is not None:
        try:
            seconds = beside_trl(ours, args, prompts, policy.engine.model.hf.dtype)
            return {"seconds": seconds, "ratio": seconds["trl"] / seconds["tacit"]}
        except Exception as error:
            note = f"trl does not run here: {type(error).__name__}: {str(error)[:200]}"
    return {"seconds": turns({"tacit": ours}, args), "ratio": None, "note": note}


def parse() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="checkpoint directory, or a tiny size (default %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if gpu else "cpu")
    parser.add_argument("--threads", type=int, default=1 if not gpu else 0, help="CPU threads of both (default %(default)s)")
    parser.add_argument("--rows", type=int, default=128 if gpu else 64, help="rows of the training batch (default %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=200 if gpu else 80, help="mean tokens (default %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=32 if gpu else 16, help="mean tokens (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds; the median counts (default %(default)s)")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="wall or CPU time (default %(default)s)")
    parser.add_argument("--token-budget", type=int, default=0, help="padded tokens per forward pass of ours (default: auto)")
    parser.add_argument("--lora-rank", type=int, default=0, help="train adapters of this rank (default: all weights)")
    parser.add_argument("--repeatable", action="store_true", help="use deterministic sums in our step on a GPU")
    parser.add_argument("--only", choices=("step", "grpo"), help="run only one of the two comparisons")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    if args.lora_rank and args.only != "step":
        parser.error(f"--lora-rank {args.lora_rank}: TRL's step would train all weights, ours only adapters; add --only step")
    return args


def begin_with(threads: int) -> None:
    """Restart this process if it started with another OMP_NUM_THREADS; 0 keeps it."""
    if threads and os.environ.get("OMP_NUM_THREADS") != str(threads):
        os.environ["OMP_NUM_THREADS"] = str(threads)
        os.execv(sys.executable, sys.orig_argv)


def main() -> None:
    args = parse()
    begin_with(args.threads)
    settings = EngineSettings(
        device=args.device,
        threads=args.threads,
        token_budget=args.token_budget,
        lora_rank=args.lora_rank,
        repeatable=args.repeatable,
    )
    sizes = TINY_SIZES.get(args.model)
    args.path = str(tiny_checkpoint(world_texts(), sizes, 0)) if sizes else str(Path(args.model).expanduser())
    result: dict[str, Any] = {"benchmark": "train_step", "model": args.model, "device": args.device}
    policy = load_policy(args.path, settings)
    result["threads"], result["parameters"] = torch.get_num_threads(), policy.engine.model.hf.num_parameters()
    print(f"{args.model}: {result['parameters']:,} parameters, {args.device}, {torch.get_num_threads()} CPU threads")
    if args.only != "grpo":
        step = result["step"] = compare_steps(policy, args)
        for name, speed in step["tokens_per_s"].items():
            print(f"  training step  {name:<13}{speed:>12,.0f} tokens/s")
        if step["ratio"]:
            rows = f" ({step['plain_rows']} rows at once there)" if step["plain_rows"] < args.rows else ""
            print(f"  training step  ratio        {step['ratio']:>12.2f}×{rows}")
        if step["ratio_packed"]:
            print(f"  training step  ratio, packed{step['ratio_packed']:>12.2f}×")
    if args.only != "step":
        grpo = result["grpo"] = compare_grpo(load_policy(args.path, settings), args)
        for name, seconds in grpo["seconds"].items():
            print(f"  GRPO step      {name:<13}{seconds:>12.3f} s")
        print(f"  GRPO step      ratio        {grpo['ratio']:>12.2f}×" if grpo["ratio"] else f"  GRPO step      {grpo['note']}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
