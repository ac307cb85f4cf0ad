"""Train a LoRA adapter on ALFWorld on one GPU. Prompts are conversations in the model's chat template, actions tool calls.

python examples/lora.py --model Qwen/Qwen2.5-1.5B-Instruct
python examples/lora.py --model PATH --rehearse        # a smoke test: a few steps, also on a CPU
"""

from __future__ import annotations

import argparse

import tacit


def watch(event: tacit.Event) -> bool | None:
    """Stop when an iteration won every episode: GRPO has no gradient then."""
    if event.kind == "step" and event.stage == "rl":
        print(f"iteration {event.step}: success {event.metrics['success']:.0%}, {event.metrics['valid']:.0%} of answers parse")
        return event.metrics["success"] == 1.0
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="checkpoint directory or hub id")
    parser.add_argument("--out", default="runs/lora")
    parser.add_argument("--style", default="tools", choices=("tools", "tags", "bare"))
    parser.add_argument("--rehearse", action="store_true", help="run only two SFT steps and one iteration of two episodes")
    args = parser.parse_args()

    size = {
        "sft": {"steps": 100, "tasks": 500, "lr": 1e-4, "batch": 32},
        "iterations": 50,
        "warmup": 0.1,
        "decay": "cosine",
        "evaluation": {"every": 10, "patience": 3},
    }
    if args.rehearse:
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
        model=args.model,
        out=args.out,
        resume=True,
        callbacks=watch,
        style=args.style,
        chat=True,
        history=4,
        lr=1e-5,
        engine={"lora_rank": 16},
        **size,
    )
    print("trained:", run.success, "best checkpoint:", run.evaluate(checkpoint="best"))
    turn = run.turns("eval-rl", rows=True)[0]
    print("it saw:", turn["saw"], "\nit wrote:", turn["wrote"])
