"""Inputs of a plan: the model's shape, and the turns and tokens of episodes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tacit.core.errors import TacitError, first_line
from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.engines.endpoint.policy import ByteTokens
from tacit.engines.models.bases import BASES, TOKEN_FILES, base_path, codec_in, find_pretrained, take_from_cache_if_offline
from tacit.planning.plans import Workload
from tacit.planning.shapes import SIZES, ModelShape, shape_in, shape_of_size
from tacit.rollout.encoding import encode_action
from tacit.rollout.replay import Interaction, play_episode, render_turns
from tacit.runs.trajectories import read_records

BYTES_PER_TOKEN = 3.2  # without a tokenizer; SmolLM2 and Qwen2.5: 3.0 to 3.4 on ALFWorld, 2.5 on Countdown, 4.2 on Cooking


ENOUGH = 256  # recorded episodes used, newest first


def model_shape(name: str) -> tuple[ModelShape, Path | None]:
    """(shape, directory of the tokenizer) of a size, a packaged base, a directory or a hub id. A size has no tokenizer (None).
    From the hub, only config and tokenizer files are downloaded."""
    shape = shape_of_size(name)
    if shape is not None:
        return shape, None
    place = Path(base_path(name) if name in BASES else find_pretrained(name))
    if not place.is_dir():
        place = _hub_directory(name)
        return replace(shape_in(place), name=name), place
    return shape_in(place), place


def _hub_directory(name: str) -> Path:
    """Cache directory with config.json and tokenizer of a hub id, downloaded if necessary."""
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            return Path(cached).parent
        take_from_cache_if_offline(name)
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.jinja", "*.txt", "*.model"]))
    except TacitError as error:
        raise TacitError(
            f"{error} To plan without its files, give its size: {', '.join(SIZES)}, or any such as 360M."
        ) from error
    except Exception as error:  # missing, gated or misspelled
        reason = first_line(error).rstrip(".")
        raise TacitError(
            f"cannot read the config.json of model {name!r}: {reason}. Name its directory, or its size."
        ) from error


def recorded_workload(path: Path, episodes: int) -> Workload:
    """From the newest RL iteration of a run, or from one trajectory file."""
    file = path.expanduser()
    if file.is_dir():
        files = sorted((file / "trajectories").glob("rl-*.jsonl.gz")) or sorted((file / "trajectories").glob("*.jsonl.gz"))
        if not files:
            raise TacitError(f"{path} has no trajectories/*.jsonl.gz to measure; name a run that kept its trajectories.")
    else:
        files = [file]
    records: list[dict[str, Any]] = []
    for newest in reversed(files):
        try:
            records += read_records(newest)
        except (OSError, ValueError) as error:
            raise TacitError(f"cannot read the recorded episodes in {newest}: {error}.") from error
        if len(records) >= ENOUGH:
            break
    played = [
        np.array([[max(1, turn["prompt_tokens"]), max(1, turn["tokens"])] for turn in record["turns"]], np.int64)
        for record in records
        if record.get("turns")
    ]
    if not played:
        raise TacitError(f"{path} has no episode with a turn to measure.")
    return Workload.measured(episodes, played, source=f"{len(records)} recorded episodes, up to {files[-1].name}")


def expert_workload(
    world: Environment, tasks: Sequence[Task], context: Context, model: tuple[str, Path | None], episodes: int, limit: int
) -> Workload:
    """Turns and tokens of the expert's episodes, with this context's prompts. `model`: its name and the directory of its
    tokenizer; without a tokenizer, tokens are estimated from bytes."""
    name, place = model
    tokenizer: Tokenizer = ByteTokens()
    share, counted = 1 / BYTES_PER_TOKEN, f"{BYTES_PER_TOKEN:g} bytes a token"
    if place is not None and any((place / file).is_file() for file in TOKEN_FILES[:3]):
        tokenizer, share, counted = codec_in(str(place)), 1.0, f"tokenizer of {name or place.name}"
    live, make_expert = world.make(), world.expert()
    measured, seconds, steps = [], 0.0, 0

    def timed(course: Iterator[Interaction]) -> Iterator[Interaction]:
        """Yield the same interactions and add the time of world and expert to `seconds`."""
        nonlocal seconds
        while True:
            began = time.perf_counter()
            turn = next(course, None)
            seconds += time.perf_counter() - began
            if turn is None:
                return
            yield turn

    try:
        for task in tasks:
            turns = []
            course = timed(play_episode(live, task, make_expert(task), limit))
            for turn in render_turns(context, task, course, tokenizer=tokenizer):
                action = encode_action(turn.prompt, turn.action, context.format, tokenizer)
                turns.append((max(1, round(len(turn.tokens) * share)), max(1, round(len(action) * share))))
            measured.append(np.array(turns, np.int64))
            steps += len(turns)
    finally:
        live.close()
    source = f"expert of {world.name}, {len(tasks)} tasks, {counted}"
    return Workload.measured(episodes, measured, seconds / steps, source)
