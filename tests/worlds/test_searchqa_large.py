"""The disk index of large corpora finds the same passages as the in-memory index."""

from __future__ import annotations

import json
from random import Random

import pytest

from tacit.core.errors import TacitError
from tacit.worlds.searchqa import published, searchqa_environment
from tacit.worlds.searchqa.retrieval import Bm25, DiskIndex, Passage, build_index, open_disk_index
from tacit.worlds.searchqa.world import make_land


@pytest.mark.parametrize("chunk", [7, 1000])
def test_disk_index_equals_in_memory_index(tmp_path, chunk):
    passages = [p for n in range(4) for p in make_land(f"test/0/{n}").passages]
    passages.append(Passage("Zürich", "Zürich lies on the Limmat 椅子 椅子"))
    build_index(tmp_path, passages, "d", [0], chunk)
    index, whole, rng = DiskIndex(tmp_path), Bm25([f"{p.title} {p.text}" for p in passages]), Random(0)
    assert len(index) == len(passages) and list(index) == passages and index[2:4] == passages[2:4]
    assert not list(tmp_path.glob("part-*"))
    queries = [" ".join(rng.sample(rng.choice(passages).text.split(), 4)) for _ in range(200)]
    for query in [*queries, "zürich", "椅子", "river", "river river town", "no such thing at all", "the of", ""]:
        for count in (1, 3, 10_000):
            assert list(index.find(query, count)) == list(whole.find(query, count)), query


def test_large_corpus_is_indexed_once_and_reindexed_when_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(published, "LARGE", 1)
    monkeypatch.setattr(published, "hash_corpus", lambda path, changed: str(path.stat().st_size))
    corpus = tmp_path / "corpus.jsonl"
    lines = [
        {"id": "0", "contents": '"Ulm"\nUlm lies on the Danube.'},
        {"id": "1", "contents": '"York"\nYork lies on the Ouse.'},
    ]
    corpus.write_text("\n".join(map(json.dumps, lines)) + "\nnot json\n")
    (tmp_path / "nq_test.jsonl").write_text(json.dumps({"question": "Which river is Ulm on?", "golden_answers": ["Danube"]}))
    world = searchqa_environment(tmp_path)

    def search() -> str:
        (task,) = world.tasks("published_test", 1, 0)
        live = world.make()
        live.reset(task)
        return live.step("search Ulm").observation.text

    assert '"Ulm" Ulm lies on the Danube.' in search()
    assert "building the index" in capsys.readouterr().out and (tmp_path / "corpus.jsonl.index" / "meta.json").is_file()
    assert "Danube" in search() and "building" not in capsys.readouterr().out
    with corpus.open("a") as out:
        out.write(json.dumps({"id": "2", "contents": '"Ulm Minster"\nUlm Minster is a church.'}) + "\n")
    assert "church" in search() and "building" in capsys.readouterr().out


def test_large_json_corpus_is_rejected(tmp_path):
    corpus = tmp_path / "corpus.json"
    corpus.write_text("[]")
    with pytest.raises(TacitError, match=r"convert a large corpus to \.jsonl or \.parquet"):
        open_disk_index(corpus, "d", published.stream_passages(corpus))


def test_parquet_questions_and_corpus_are_read(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (extra parquet)")
    import pyarrow

    rows = [{"id": "q1", "question": "Which river is Ulm on?", "golden_answers": ["Danube"]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "nq_test.parquet")
    passages = [{"id": "0", "contents": '"Ulm"\nUlm lies on the Danube.'}]
    parquet.write_table(pyarrow.Table.from_pylist(passages), tmp_path / "corpus.parquet")
    world = searchqa_environment(tmp_path)
    (task,) = world.tasks("published_test", 1, 0)
    live = world.make()
    live.reset(task)
    assert "Ulm lies on the Danube." in live.step("search Ulm").observation.text
    assert list(published.stream_passages(tmp_path / "corpus.parquet")) == [Passage("Ulm", "Ulm lies on the Danube.")]
