"""Small run and comparison directories for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tacit.evaluation.statistics import wilson
from tacit.runs.trajectories import write_records

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\"><b>&amp; \u2028 \x1b[31m"


def evaluation(stage: str, step: int, won: int, played: int = 40) -> dict[str, Any]:
    return {
        "stage": stage, "step": step, "panel": "letters/test/40", "panel_hash": "0123456789abcdef", "episodes": played,
        "successes": won, "success": won / played, "interval": list(wilson(won, played)), "score": won / played + 0.003,
        "steps": 7.25 + step, "success_steps": 5.5 + step, "invalid": 0.0125, "ineffective": 0.0625, "prompt_tokens": 81.5,
        "completion_tokens": 6.75, "crashed": 1, "seed": 0,
        "sampling": {"temperature": 0.4, "top_p": 1.0, "top_k": 0, "max_tokens": 32, "stop": []},
    }  # fmt: skip


def episode(
    number: int, success: bool, turns: int = 3, family: str = "pick", text: str = "a room", **more: Any
) -> dict[str, Any]:
    return {
        "task": f"letters/test/{number}", "family": family, "goal": f"goal {number}", "success": success,
        "score": float(success), "stop": "success" if success else "step_limit", "detail": "", "condition": "plain", "seed": 7,
        "turns": [
            {"saw": f"{text}, turn {t}", "wrote": f"wrote {t}", "action": f"act {t}", "valid": True, "effective": t != 1,
             "prompt_tokens": 10 + t, "tokens": 4, "logprob": -0.5, "reward": 0.25 * t, "credit": 0.5 - t}
            for t in range(turns)
        ],
        "saw": f"{text}, the end", **more,
    }  # fmt: skip


def write_run(path: Path, finished: bool = True, episodes: list[dict[str, Any]] | None = None) -> Path:
    """A run with a world and a method that are not installed, so the page has only the directory."""
    path.mkdir(parents=True)
    settings = {"world": "letters", "model": "tiny", "out": str(path), "seed": 3, "method": {"name": "mine", "kl": 0.125}}
    (path / "settings.json").write_text(json.dumps(settings))
    (path / "versions.json").write_text(json.dumps({"tacit": "0.1.0", "machine": "Linux x86_64", "python": "3.11"}))
    scores = [evaluation("untrained", 0, 2), evaluation("rl", 5, 31), evaluation("rl", 10, 23)]
    lines = [
        {"stage": "rl", "step": s, "success": s / 20, "entropy": 1.5 - s / 10, "reference_kl": 0.01 * s, "at": 1.0}
        for s in range(1, 11)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        summary = {
            "evaluations": scores,
            "final": scores[-1],
            "peak": scores[1],
            "episodes": 640,
            "turns": 1920,
            "wall_s": 75.0,
        }
        (path / "summary.json").write_text(json.dumps(summary))
    chosen = (
        episodes
        if episodes is not None
        else [episode(n, n % 3 == 0, 2 + n % 4, "pick" if n % 2 else "place") for n in range(12)]
    )
    write_records(path / "trajectories" / "eval-rl-000010.jsonl.gz", chosen)
    write_records(path / "trajectories" / "rl-000010.jsonl.gz", [episode(90 + n, n == 0, 5) for n in range(3)])
    return path


METHODS, WORLDS, SEEDS = ("grpo", "bipace", "reuserl"), ("countdown", "letters"), (0, 1, 2)
RISES = {"grpo": 0.45, "bipace": 0.62, "reuserl": 0.55}


def write_comparison(path: Path) -> Path:
    """Three methods, two worlds, three seeds. One cell failed, one was never started, one is unfinished."""
    path.mkdir(parents=True)
    states = {
        ("letters", "reuserl", 1): "failed",
        ("letters", "reuserl", 2): "missing",
        ("letters", "bipace", 2): "unfinished",
    }
    cells = [_cell(path, w, m, s, states.get((w, m, s), "finished")) for w in WORLDS for m in METHODS for s in SEEDS]
    found = {
        "format": 1, "name": "three methods", "description": "A comparison made for a test.", "file": "three.toml",
        "command": ["tacit", "compare", "three.toml"], "versions": {"tacit": "0.1.0", "machine": "Linux x86_64"},
        "seeds": list(SEEDS), "worlds": list(WORLDS), "methods": list(METHODS), "baseline": "grpo", "thresholds": [0.25, 0.5],
        "confidence": 0.95, "complete": False, "notes": ["Budgets differ between the methods."],
        "panels": {w: {"name": f"{w}/test/40", "hash": "0123456789abcdef", "episodes": 40} for w in WORLDS},
        "starts": {}, "cells": cells, "table": [_row(w, m, cells) for w in WORLDS for m in METHODS],
    }  # fmt: skip
    (path / "comparison.json").write_text(json.dumps(found))
    return path


def _cell(path: Path, world: str, method: str, seed: int, status: str) -> dict[str, Any]:
    place = f"runs/{world}/{method}/{seed}"
    started, finished = status != "missing", status == "finished"
    scale = 0.8 if world == "letters" else 1.0
    last = 40 if finished else 20
    steps = range(0, last + 1, 5) if started else ()
    curve = [
        {"step": s, "success": round(0.1 + scale * RISES[method] * (s / 40) ** 0.7 + 0.015 * seed, 4), "score": 0.5}
        for s in steps
    ]
    won = round(40 * curve[-1]["success"]) if curve else 0
    if finished:
        episodes = [episode(n, n < won, 3 + (n + seed) % 6, "pick" if n % 2 else "place") for n in range(40)]
        write_records(path / place / "trajectories" / "eval-rl-000040.jsonl.gz", episodes)
    final = evaluation("rl", 40, won) if finished else None
    return {
        "world": world, "method": method, "seed": seed, "run": place, "status": status,
        "error": "Traceback …\ntacit: the loss is not a number at iteration 21" if status == "failed" else None,
        "command": ["tacit", "train"],
        "settings": {"world": world, "seed": seed, "method": {"name": method, "kl": len(method) / 100}},
        "versions": None, "evaluations": [], "start": evaluation("sft", 0, 4), "final": final, "peak": final, "curve": curve,
        "steps_to": [], "area": 0.4, "outcomes": None, "iterations": 40, "episodes": 5120 if finished else None, "turns": None,
        "generated_tokens": 412345 if finished else None, "wall_s": 812.0 if finished else None, "digest": None,
    }  # fmt: skip


def _row(world: str, method: str, cells: list[dict[str, Any]]) -> dict[str, Any]:
    own = [c for c in cells if (c["world"], c["method"]) == (world, method) and c["final"]]
    values, seeds = [c["final"]["success"] for c in own], [c["seed"] for c in own]
    mean = sum(values) / len(values)

    def measure(value: float, half: float) -> dict[str, Any]:
        return {"mean": value, "low": max(0.0, value - half), "high": min(1.0, value + half), "per_seed": values}

    against = {
        "method": "grpo", "seeds": seeds, "won": 21, "lost": 9, "p": 0.02, "p_holm": 0.0417, "p_seeds": 0.25,
        "p_seeds_holm": 0.5, "difference": {"mean": mean - 0.5, "low": mean - 0.6, "high": mean - 0.4, "per_seed": values},
    }  # fmt: skip
    reached = [
        {"threshold": 0.25, "reached": len(own), "of": len(own), "median": 10},
        {"threshold": 0.5, "reached": 0, "of": len(own), "median": None},
    ]
    return {
        "world": world, "method": method, "seeds": seeds, "missing": [s for s in SEEDS if s not in seeds],
        "start": measure(0.1, 0.05), "final": measure(mean, 0.09), "peak": measure(mean + 0.02, 0.08),
        "score": measure(mean, 0.05),
        "success_length": {"mean": 8.25, "low": 7.5, "high": 9.0, "per_seed": []}, "invalid": measure(0.03, 0.01),
        "ineffective": measure(0.2, 0.03), "area": measure(0.4, 0.05), "bootstrap": None, "steps_to": reached,
        "against": None if method == "grpo" else against,
    }  # fmt: skip
