"""An extractor behind an endpoint cannot be trained: training is refused at the start, static extraction works."""

from __future__ import annotations

import json

import pytest
from chat_server import says, serving

import tacit
from tacit.companions.experience.files import find_bank, read_bank
from tacit.core.errors import TacitError

SMALL = {
    "iterations": 2, "groups": 2, "group_size": 4, "max_steps": 2, "max_tokens": 8, "tasks": 4, "merge_every": 0,
    "tiny": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 2}, "engine": {"device": "cpu", "threads": 1},
    "evaluation": {"tasks": 2, "every": 0, "untrained": False, "max_steps": 2}, "sft": {"steps": 0},
    "extractor": {"style": "json"}, "quiet": True,
}  # fmt: skip


def writing(body):
    """Every third answer is unusable."""
    if body["seed"] % 3 == 0:
        return 200, says("I would rather not.")
    entries = {"operations": [{"op": "add", "text": f"try {body['seed']}"}]}
    return 200, says(f"<think>{{hm}}</think>{json.dumps(entries)}")


def trained(server, out, **settings):
    beside = {"extractor": {"model": "writer", "engine": {"name": "chat", "url": server.url}}}
    return tacit.train("countdown", "complementary", "tiny-0.5m", out=out, policies=beside, **SMALL, **settings)


def test_training_an_endpoint_extractor_is_refused_before_loading(tmp_path):
    with serving(writing) as server:
        with pytest.raises(TacitError, match=r"\[policies.extractor\]: engine 'chat' cannot train.*--extraction static"):
            trained(server, tmp_path / "run")
        assert not server.requests and not (tmp_path / "run").exists()


def test_static_endpoint_extractor_fills_the_bank(tmp_path):
    with serving(writing) as server:
        run = trained(server, tmp_path / "run", extraction="static")
    *_, last = run.metrics("rl", rows=True)
    texts = [entry.text for entry in read_bank(find_bank(run.path)).entries.values()]
    assert len(texts) == last["experience/entries"] > 0 and all(text.startswith("try ") for text in texts)
    assert last["experience/refused"] > 0 and last["experience/refused"] + last["experience/added"] == 16
    assert last["experience/buffer"] == 0 and last["experience/success_guided"] is not None, "there was something to guide by"
