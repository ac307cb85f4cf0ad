"""Evaluate a model behind an OpenAI-compatible endpoint with three prompt formats: one message, a conversation, tool calls.

    vllm serve Qwen/Qwen2.5-1.5B-Instruct --enable-auto-tool-choice --tool-call-parser hermes
    python examples/endpoint.py --url http://localhost:8000/v1 --model Qwen/Qwen2.5-1.5B-Instruct

If the endpoint needs a key, set OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse

import tacit

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--world", default="countdown")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--out", default="evaluations/endpoint")
    args = parser.parse_args()

    formats = {"tags": {}, "tags in a conversation": {"chat": True}, "tool calls": {"style": "tools"}}
    for name, settings in formats.items():
        evaluation = tacit.evaluate(
            args.model,
            world=args.world,
            endpoint=args.url,
            tasks=args.tasks,
            out=args.out,
            progress=lambda finished: print(f"\r{finished} of {args.tasks} episodes", end="", flush=True),
            **settings,
        )
        turns = evaluation.turns(rows=True)
        parsed = sum(turn["valid"] for turn in turns) / max(1, len(turns))
        print(f"\r{name}: {evaluation}; {parsed:.0%} of {len(turns)} answers parse")
