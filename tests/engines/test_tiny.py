"""Tiny checkpoints: deterministic, cached, and rebuilt when damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.core.errors import TacitError
from tacit.engines.models.tiny import TINY_SIZES, TinySettings, tiny_checkpoint, train_tokenizer

SMALL = TinySettings(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64)


@pytest.fixture()
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def content(place: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(place.iterdir())}


def test_named_sizes_have_the_parameters_they_name() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    for name, millions in {"tiny": 1.0, "tiny-0.5m": 0.5, "tiny-1m": 1.0, "tiny-4m": 4.0}.items():
        s = TINY_SIZES[name]
        config = LlamaConfig(
            vocab_size=s.vocab,
            hidden_size=s.hidden,
            num_hidden_layers=s.layers,
            num_attention_heads=s.heads,
            num_key_value_heads=s.kv_heads,
            intermediate_size=s.intermediate,
            tie_word_embeddings=True,
        )
        assert LlamaForCausalLM(config).num_parameters() == pytest.approx(millions * 1e6, rel=0.1), name


@pytest.mark.slow
def test_another_process_builds_the_same_bytes(cache: Path, texts: list[str], tmp_path: Path) -> None:
    here = content(tiny_checkpoint(texts, SMALL, seed=3))
    script = (
        "import json, sys; from tacit.engines.models.tiny import *;"
        "print(tiny_checkpoint(json.load(sys.stdin), TinySettings(**json.loads(sys.argv[1])), 3))"
    )
    sizes = json.dumps({name: getattr(SMALL, name) for name in TinySettings.__dataclass_fields__})
    run = subprocess.run(
        [sys.executable, "-c", script, sizes],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
        env={"TACIT_CACHE": str(tmp_path / "other"), "PYTHONHASHSEED": "7", "PATH": "", "OMP_NUM_THREADS": "1"},
    )
    assert content(Path(run.stdout.strip())) == here


def test_cached_checkpoints_are_reused_and_keyed_by_settings(cache: Path, texts: list[str]) -> None:
    first = tiny_checkpoint(texts, SMALL, seed=0)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert tiny_checkpoint(texts, SMALL, seed=0) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    others = {
        tiny_checkpoint(texts, SMALL, seed=1),
        tiny_checkpoint(texts[1:], SMALL, seed=0),
        tiny_checkpoint(texts, TinySettings(hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64), seed=0),
    }
    assert len(others | {first}) == 4
    assert not list(cache.glob("tiny/building-*"))


@pytest.mark.parametrize("damage", ["truncate", "delete", "manifest"])
def test_damaged_cache_entry_is_rebuilt(cache: Path, texts: list[str], damage: str) -> None:
    place = tiny_checkpoint(texts, SMALL, seed=0)
    before = content(place)
    if damage == "truncate":
        (place / "model.safetensors").write_bytes(before["model.safetensors"][:100])
    elif damage == "delete":
        (place / "tokenizer.json").unlink()
    else:
        (place / "tiny.json").write_text("{")
    assert content(tiny_checkpoint(texts, SMALL, seed=0)) == before


def test_concurrent_builds_give_one_checkpoint(cache: Path, texts: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        places = list(pool.map(lambda _: tiny_checkpoint(texts, SMALL, seed=0), range(4)))
    assert len(set(places)) == 1 and (places[0] / "tiny.json").is_file()
    assert not list(cache.glob("tiny/building-*"))


def test_unwritable_cache_is_reported(tmp_path: Path, texts: list[str], monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(TacitError, match="TACIT_CACHE"):
        tiny_checkpoint(texts, SMALL, seed=0)


def test_impossible_sizes_are_refused() -> None:
    for bad in ({"vocab": 100}, {"heads": 5}, {"kv_heads": 3}, {"layers": 0}):
        with pytest.raises(TacitError, match=next(iter(bad))):
            TinySettings(**bad)
    with pytest.raises(TacitError, match="text"):
        tiny_checkpoint(["  "], SMALL, 0)


def test_digits_are_single_tokens_and_spaces_join_the_preceding_token(texts: list[str]) -> None:
    tokenizer = train_tokenizer(texts, 512)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("numbers: 31 7 | target: 82\nop(*, 3, 25)").ids]
    assert [p for p in pieces if any(c.isdigit() for c in p)] == list("3178232" + "5")
    assert pieces[:2] == ["numbers", ": "] and "(*, " in pieces


TOKENIZER = train_tokenizer(["numbers: 3 7 25 | target: 82", "op(*, 3, 25)"] * 3, 512)


@given(st.text())
def test_tokenizer_round_trips_any_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_completions_end_with_the_end_token_and_prompts_have_none(make_policy) -> None:
    policy = make_policy()
    tokens = policy.encode_completion("op(*, 3, 25)")
    assert tokens[-1] == policy.engine.codec.end != policy.engine.codec.pad
    assert policy.decode(tokens) == "op(*, 3, 25)"
    prompt = policy.encode_prompt("op(*, 3, 25)")
    assert prompt.dtype == np.int64 and (prompt == tokens[:-1]).all()
    assert policy.context_limit == 256
