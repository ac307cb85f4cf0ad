"""Skill modules that train in seconds: a policy of width 32 on generated houses, with or without LoRA."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.cli.main import main
from tacit.modules.module import MANIFEST, hash_manifest

RECIPE = """
world = "alfworld"
model = "tiny"
tasks = 16
max_steps = 4
checkpoint_every = 1

[method]
name = "constant_context"

[schedule]
groups = 2
group_size = 2
iterations = 2
lr = 1e-2

[sft]
steps = 60
batch = 16
tasks = 12
lr = 1e-2

[evaluation]
split = "seen"
tasks = 4
every = 1
max_steps = 4
untrained = false

[engine]
device = "cpu"
threads = 1
lora_rank = 4

[tiny]
vocab = 512
hidden = 32
layers = 1
heads = 2
kv_heads = 2
intermediate = 64
"""


def write_recipe(directory: Path, text: str = RECIPE) -> Path:
    file = directory / "small.toml"
    file.write_text(text)
    return file


def train_modules(recipe: Path, out: Path, *flags: str) -> int:
    return main(["modules", "train", "--config", str(recipe), "--out", str(out), *flags])


@dataclass(frozen=True)
class Trained:
    recipe: Path
    modules: Path
    output: str
    """the output of the training"""


def train_both(directory: Path) -> Trained:
    """Train the modules unless the directory already has them."""
    recipe, modules, output_file = write_recipe(directory), directory / "modules", directory / "said.txt"
    if not output_file.exists():
        with redirect_stdout(io.StringIO()) as printed:
            assert train_modules(recipe, modules, "--skills", "heat,pick") == 0
        output_file.write_text(printed.getvalue())
    return Trained(recipe, modules, output_file.read_text())


def change_manifest(module: Path, **changes: Any) -> None:
    """Change fields of the module's manifest and update its hash."""
    data = json.loads((module / MANIFEST).read_text()) | changes
    (module / MANIFEST).write_text(json.dumps({**data, "sha256": hash_manifest(data)}))
