"""A comparison of three methods × two worlds × three seeds that runs in seconds."""

from __future__ import annotations

from pathlib import Path

WORLDS = Path(__file__).parents[1] / "guessing.py"

SMALL = f"""
name = "small"
description = "Three methods say letters."
seeds = [0, 1, 2]
thresholds = [0.2, 0.9]

[common]
model = "tiny"
tasks = 64
checkpoint_every = 1
tiny = {{ vocab = 512, hidden = 32, layers = 1, heads = 2, kv_heads = 2, intermediate = 64 }}

[common.schedule]
groups = 8
group_size = 4
iterations = 2
lr = 3e-3

[common.evaluation]
tasks = 24
every = 1
temperature = 1.0

[common.engine]
device = "cpu"
threads = 1

[worlds.same]
world = "{WORLDS}:SAME"

[worlds.same.start.sft]
steps = 50
batch = 16
tasks = 64
lr = 1e-2

[worlds.next]
world = "{WORLDS}:NEXT"
sft = {{ steps = 50, batch = 16, tasks = 64, lr = 1e-2 }}

[methods.grpo]

[methods.plain]
name = "grpo"
std = "none"
kl = 0.0

[methods.ppo]
success_reward = 1.0
invalid_penalty = 0.01
schedule.minibatches = 2
"""


def write(file: Path, text: str = SMALL) -> Path:
    file.write_text(text)
    return file
