"""Saving and loading a sharded policy: weights anyone can open with transformers or peft, and beside them what training needs
to go on exactly, on this or any other number of ranks.

    policy.json         what is here, and a digest of the trained weights
    model/              all parameters: a transformers checkpoint
    adapters/<name>/    LoRA: a peft checkpoint for each adapter
    shards/             weights, moments, value heads and references, as the ranks wrote them
"""

from __future__ import annotations

import json
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.trust import require_trust
from tacit.engines.local.checkpoint import FORMAT, MANIFEST, export, read_manifest
from tacit.engines.sharded.engine import ShardedEngine
from tacit.engines.sharded.shards import LAYOUT, PICKLED

SHARDS = "shards"


def save(engine: ShardedEngine, directory: Path, optimizer: bool) -> None:
    """Everything, into an empty directory. The manifest is written last: without it a checkpoint does not count. Without the
    optimiser, what is saved (and its digest) is the model as it samples, not its float32 masters."""
    directory = directory.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        members = engine.ranks.ask("save", directory / SHARDS, optimizer)[0]
        for name in members:
            engine.replica.sync_weights(name)
        export(engine.replica, directory)
        manifest = {
            "format": FORMAT,
            "lora": bool(engine.settings.lora_rank),
            "optimizer": optimizer,
            "digest": engine.digest(masters=optimizer),
            "ranks": engine.ranks.size,
            "members": members,
        }
        (directory / MANIFEST).write_text(json.dumps(manifest, indent=1))
    except OSError as error:
        raise TacitError(f"cannot write the checkpoint {directory}: {error}. Earlier checkpoints are untouched.") from error


def load(engine: ShardedEngine, directory: Path) -> None:
    """Put a saved policy into this one, bit for bit."""
    directory = directory.absolute()
    manifest = read_manifest(directory, bool(engine.settings.lora_rank), engine.versions)
    if not (directory / SHARDS).is_dir():
        raise TacitError(
            f"checkpoint {directory} has no {SHARDS}/: another engine wrote it, or it is incomplete. Go on with that engine, "
            f"or start from its weights with --model {directory}."
        )
    pickled = (directory / SHARDS / PICKLED).exists() and not (directory / SHARDS / LAYOUT).exists()
    if pickled:
        require_trust(f"checkpoint {directory} is of an older version and would run the pickle {SHARDS}/{PICKLED}")
    for name in manifest["members"]:
        engine.member(name)
    engine.ranks.ask("load", directory / SHARDS, manifest["members"], manifest["optimizer"], pickled)
    for name, told in manifest["members"].items():
        engine.versions[name] += 1
        (engine.references.add if told["reference"] else engine.references.discard)(name)
    if engine.digest() != manifest["digest"]:
        raise TacitError(f"checkpoint {directory} is damaged: its weights do not match the digest saved with them.")
