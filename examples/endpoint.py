"""A model behind an OpenAI-compatible endpoint, measured on a panel: one message per turn, a conversation, and tool calls.

    vllm serve Qwen/Qwen2.5-1.5B-Instruct --enable-auto-tool-choice --tool-call-parser hermes
    python examples/endpoint.py --url http://localhost:8000/v1 --model Qwen/Qwen2.5-1.5B-Instruct

Its key is read from $OPENAI_API_KEY, if it wants one.
"""

from __future__ import annotations

import argparse

import tacit

if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--url", required=True)
    options.add_argument("--model", required=True)
    options.add_argument("--world", default="countdown")
    options.add_argument("--tasks", type=int, default=16)
    options.add_argument("--out", default="evaluations/endpoint")
    chosen = options.parse_args()

    ways = {"tags": {}, "tags in a conversation": {"chat": True}, "tool calls": {"style": "tools"}}
    for way, settings in ways.items():
        measured = tacit.evaluate(
            chosen.model,
            world=chosen.world,
            endpoint=chosen.url,
            tasks=chosen.tasks,
            out=chosen.out,
            progress=lambda over: print(f"\r{over} of {chosen.tasks} episodes", end="", flush=True),
            **settings,
        )
        turns = measured.turns(rows=True)
        parsed = sum(turn["valid"] for turn in turns) / max(1, len(turns))
        print(f"\r{way}: {measured}; {parsed:.0%} of {len(turns)} answers parse")
