"""A language model on one GPU: a LoRA adapter learns a household, told as a conversation with tool calls in its own template.

python examples/lora.py --model Qwen/Qwen2.5-1.5B-Instruct
python examples/lora.py --model PATH --rehearse        # a few steps, on a CPU if need be: does all of it work?
"""

from __future__ import annotations

import argparse

import tacit


def watch(event: tacit.Event) -> bool | None:
    """Stop when nothing can be learned any more: every episode of an iteration was won."""
    if event.kind == "step" and event.stage == "rl":
        print(f"iteration {event.step}: success {event.metrics['success']:.0%}, {event.metrics['valid']:.0%} of answers parse")
        return event.metrics["success"] == 1.0
    return None


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--model", required=True, help="the directory of a checkpoint, or a hub id")
    options.add_argument("--out", default="runs/lora")
    options.add_argument("--style", default="tools", choices=("tools", "tags", "bare"))
    options.add_argument("--rehearse", action="store_true", help="two steps and one iteration of two episodes")
    chosen = options.parse_args()

    size = {
        "sft": {"steps": 100, "tasks": 500, "lr": 1e-4, "batch": 32},
        "iterations": 50,
        "warmup": 0.1,
        "decay": "cosine",
        "evaluation": {"every": 10, "patience": 3},
    }
    if chosen.rehearse:
        size = {
            "sft": {"steps": 2, "tasks": 2, "batch": 2},
            "iterations": 1,
            "groups": 1,
            "group_size": 2,
            "max_steps": 2,
            "max_tokens": 16,
            "tasks": 4,
            "evaluation": {"tasks": 2, "max_steps": 2},
        }
    run = tacit.train(
        world="alfworld",
        method="gigpo",
        model=chosen.model,
        out=chosen.out,
        resume=True,
        callbacks=watch,
        style=chosen.style,
        chat=True,
        history=4,
        lr=1e-5,
        engine={"lora_rank": 16},
        **size,
    )
    print("trained:", run.success, "best checkpoint:", run.evaluate(checkpoint="best"))
    turn = run.turns("eval-rl", rows=True)[0]
    print("it saw:", turn["saw"], "\nit wrote:", turn["wrote"])
