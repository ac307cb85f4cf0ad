"""Servers that cannot be: refused with the remedy, with or without vLLM on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_ranks import forked_ranks

from tacit.core.engine import ModelSource
from tacit.core.errors import TacitError
from tacit.engines.sharded.driver.policy import load_policy
from tacit.engines.sharded.settings import ShardedSettings
from tacit.testing.plain import small_checkpoint


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"servers": -1}, "must not be negative"),
        ({"servers": 1, "server_memory": 1.5}, "server_memory = 1.5"),
        ({"servers": 1, "address": "auto", "exchange": "/x", "server_python": "python3"}, "install vLLM there"),
        ({"servers": 1, "address": "auto"}, "--engine.exchange"),
        ({"servers": 1, "lora_rank": 1024}, "lora_rank = 1024"),
    ],
)
def test_settings_that_cannot_work(said: dict, words: str) -> None:
    with pytest.raises(TacitError, match=words):
        ShardedSettings(**said)


@pytest.fixture
def ranks() -> Iterator[None]:
    with forked_ranks():
        yield


def test_an_interpreter_without_vllm_is_named(tmp_path: Path, ranks: None) -> None:
    checkpoint = small_checkpoint(tmp_path)
    for python, words in (
        ("/bin/false", r"server 0 \(process \d+\) did not start: .*exit code 1.*--engine.server-python"),
        ("/no/such/python", "cannot start a server with /no/such/python"),
    ):
        with pytest.raises(TacitError, match=words):
            load_policy(ModelSource(str(checkpoint)), ShardedSettings(device="cpu", threads=1, servers=1, server_python=python))


def test_storage_that_cannot_be_written_is_named(tmp_path: Path, ranks: None) -> None:
    (tmp_path / "file").write_text("")
    settings = ShardedSettings(device="cpu", threads=1, servers=1, exchange=str(tmp_path / "file" / "below"))
    with pytest.raises(TacitError, match=r"cannot write to --engine.exchange"):
        load_policy(ModelSource(str(small_checkpoint(tmp_path))), settings)
