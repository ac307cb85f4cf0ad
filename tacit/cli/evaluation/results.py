"""What `tacit eval` leaves behind: a result, where it is kept, and how it compares with what the run itself had measured."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.assembly.recipe import Recipe
from tacit.runs.directory import find_summary, read_settings
from tacit.runs.files import write_json

if TYPE_CHECKING:
    from tacit.assembly.players import Target
    from tacit.evaluation.scores import PanelScore

PRINTED = "-"
"""what --json is without a file"""
KEPT_IN = Path("evaluations")
"""where episodes of what is no run are kept"""


def own_evaluation(target: Target, score: PanelScore) -> dict[str, Any] | None:
    """The run's own evaluation of this checkpoint, where it played the same episodes in the same way."""
    if target.run is None:
        return None
    from tacit.assembly.players import UNTRAINED

    own = Recipe.from_json(read_settings(target.run))
    steps = own.train.evaluation.max_steps or target.world.max_steps
    if (own.settings, steps) != (target.recipe.settings, target.rules.max_steps):
        return None
    said = find_summary(target.run) or (target.checkpoint.state() if target.checkpoint else {"evaluations": []})
    stage, step = (target.checkpoint.stage, target.checkpoint.step) if target.checkpoint else (UNTRAINED, 0)
    now = json.loads(json.dumps(score.to_json()))
    alike = ("panel_hash", "episodes", "sampling", "seed")
    for evaluation in said["evaluations"]:
        if (evaluation["stage"], evaluation["step"]) == (stage, step) and all(evaluation[k] == now[k] for k in alike):
            return evaluation
    return None


def same_episodes(score: PanelScore, earlier: dict[str, Any]) -> bool:
    """Not only as many successes: the same turns and the same tokens, to the last digit."""
    counted = ("successes", "score", "steps", "invalid", "prompt_tokens", "completion_tokens")
    return all(earlier[name] == getattr(score, name) for name in counted)


def result_of(target: Target, score: PanelScore, earlier: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "target": target.label,
        "world": target.world.name,
        "checkpoint": target.checkpoint.path.name if target.checkpoint else None,
        **score.to_json(),
        "run_success": earlier["success"] if earlier else None,
        "equals_run": same_episodes(score, earlier) if earlier else None,
    }


def directory_for(target: Target) -> Path | None:
    """Where the episodes are kept. An expert's cost nothing to play again, so they are kept only where --out says."""
    from tacit.assembly.players import EXPERT

    if target.run is not None:
        return target.run / "evaluations"
    return None if target.label == EXPERT else KEPT_IN / _plain(target.label)


def keep(arguments: Namespace, directory: Path | None, result: dict[str, Any]) -> None:
    """The result beside the episodes, and wherever else it was asked for."""
    if directory is not None:
        place = directory / result_name(result)
        write_json(place, result)
        print(f"written to {place}")
    if arguments.json == PRINTED:
        print(json.dumps(result))
    elif arguments.json:
        place = Path(arguments.json).expanduser()
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, result)
        print(f"written to {place}")


def result_name(result: dict[str, Any]) -> str:
    """In words, then as its episodes' file is named: a result of its own for each way of measuring, and none written over."""
    sampling = result["sampling"]
    parts = [result["checkpoint"] or _plain(result["target"]) or "untrained", result["panel"]]
    parts += [f"x{result['repeats']}", f"t{sampling['temperature']:g}"]
    parts += [f"p{sampling['top_p']:g}"] if sampling["top_p"] != 1 else []
    parts += [f"k{sampling['top_k']}"] if sampling["top_k"] else []
    parts += [f"seed{result['seed']}", f"{result['panel_hash']}-{result['settings_hash']}"]
    return _plain("_".join(parts)) + ".json"


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
