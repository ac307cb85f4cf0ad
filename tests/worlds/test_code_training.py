"""`tacit train --world code` with a tiny policy: no download, imitation of the oracle, then RL in the sandbox."""

from __future__ import annotations

import json

import pytest

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.sandbox import Sandbox


@pytest.mark.slow
def test_tiny_policy_trains_on_the_code_world(tmp_path):
    try:
        Sandbox().close()
    except TacitError as error:
        pytest.skip(str(error))
    words = (
        "train --world code --tests hidden --model tiny --tiny.context 1024 --tiny.layers 1 --tiny.hidden 64 --sft.steps 4 "
        "--sft.batch 8 --sft.tasks 2 --iterations 1 --groups 1 --group-size 2 --lr 1e-4 --max-steps 2 --evaluation.every 0 "
        "--no-evaluation.untrained --evaluation.tasks 1"
    )
    assert main([*words.split(), "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run/settings.json").read_text())["world"] == "code+tests=hidden"
    assert (tmp_path / "run/summary.json").is_file()
