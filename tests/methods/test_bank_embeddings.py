"""Embeddings of the experience bank: a local sentence encoder or an endpoint. The bank stores the name of its embedder."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import serving
from small_encoder import save_encoder

import tacit
from tacit.companions.experience.bank import Bank
from tacit.companions.experience.files import find_bank, read_bank_info
from tacit.core.errors import TacitError

GUESSING = f"{Path(__file__).parents[1] / 'guessing.py'}:SAME"
SMALL = {
    "iterations": 2, "groups": 2, "group_size": 4, "tasks": 4, "merge_every": 0, "extractor": {"tokens": 8}, "quiet": True,
    "tiny": {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 2}, "engine": {"device": "cpu", "threads": 1},
    "evaluation": {"tasks": 2, "every": 0, "untrained": False}, "sft": {"steps": 0}, "extraction": "offline",
}  # fmt: skip


def embedding(body):
    vectors = [[1.0, float("letter" in text), float("mug" in text)] for text in body["input"]]
    return 200, {"data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]}


@pytest.fixture
def entries(tmp_path) -> str:
    """A prepared bank, so that searches do not depend on what a tiny extractor writes."""
    file = tmp_path / "entries.jsonl"
    file.write_text('{"text": "the mug is behind red"}\n{"text": "say the letter that is read"}\n')
    return str(file)


def guided_by(run) -> set[str]:
    """The texts of all retrieved entries."""
    base = Bank(None, *read_bank_info(find_bank(run.path)))
    base.restore_from(find_bank(run.path))
    return {entry.text for entry in base.entries.values() if base.usage[entry.id].retrieved}


def test_bank_uses_a_local_sentence_encoder(tmp_path, entries):
    save_encoder(tmp_path / "encoder")
    settings = {"embedding": "sentence", "encoder": str(tmp_path / "encoder"), "bank": entries}
    run = tacit.train(GUESSING, "complementary", "tiny-0.5m", out=tmp_path / "run", **SMALL, **settings)
    assert read_bank_info(find_bank(run.path))[:2] == (str(tmp_path / "encoder"), 16) and guided_by(run)


def test_bank_uses_an_embedding_endpoint(tmp_path, entries):
    settings = {"embedding": "endpoint", "encoder": "some-encoder", "candidates": 1, "bank": entries}
    with serving(embedding) as server:
        run = tacit.train(
            GUESSING, "complementary", "tiny-0.5m", out=tmp_path / "run", embedding_url=server.url, **SMALL, **settings
        )
        assert read_bank_info(find_bank(run.path))[:2] == ("some-encoder (endpoint)", 3)
        assert guided_by(run) == {"say the letter that is read"}, "the nearest by those vectors, and by none other"
        assert {request["model"] for request in server.requests} == {"some-encoder"}
    with pytest.raises(TacitError, match=r"was made with embedder 'some-encoder \(endpoint\)'"):
        Bank(find_bank(run.path), "another-encoder (endpoint)", 3)


def test_unreachable_embedding_endpoint_is_refused_before_run_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.engines.endpoint.PAUSE_S", 0.01)
    with serving(embedding) as server:
        url = server.url
    with pytest.raises(TacitError, match="no server answers at"):
        tacit.train(
            GUESSING, "complementary", "tiny-0.5m", out=tmp_path / "run", embedding="endpoint", embedding_url=url, **SMALL
        )
    assert not (tmp_path / "run").exists()
