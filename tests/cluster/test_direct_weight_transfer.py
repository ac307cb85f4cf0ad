"""Weights without a file: servers take them from the first rank, also one that was started again while the ranks learned on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from on_servers import a_batch, needs_vllm, on_one, on_servers, process_of, requests, same, small_checkpoint

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.engines.sharded.policy import ShardedPolicy
from tacit.engines.sharded.settings import ShardedSettings
from tacit.testing.engines import LR, Weighted

pytestmark = needs_vllm
SAMPLING = Sampling(max_tokens=16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def many(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ShardedPolicy, Path]]:
    place = tmp_path_factory.mktemp("exchange")
    policy = on_servers(model, servers=2, handover="direct", exchange=str(place))
    yield policy, place
    policy.close()


def test_what_was_learned_is_what_servers_write_with_and_no_file_is_written(many: tuple[ShardedPolicy, Path], model: Path):
    (policy, place), one, asked = many, on_one(model), requests(24)
    for _ in range(3):
        for each in (one, policy):
            each.update(a_batch(asked), [Weighted()], 10 * LR)
        same(policy.sample(asked, SAMPLING), one.sample(asked, SAMPLING))
    assert not [path for path in place.rglob("*") if path.is_file()]


def test_a_server_that_is_started_again_takes_the_version_that_the_others_have(many: tuple[ShardedPolicy, Path]):
    policy, asked = many[0], requests(24)
    before = policy.sample(asked, SAMPLING)
    with policy.pin_weights():
        policy.update(a_batch(asked), [Weighted()], 10 * LR)  # the ranks have other weights now, and the file never was
        os.kill(process_of(policy, 1), signal.SIGKILL)
        with pytest.warns(UserWarning, match="server 1 .* was lost: .*SIGKILL"):
            same(policy.sample(asked, SAMPLING), before)
    after = policy.sample(asked, SAMPLING)
    assert {c.version for c in after} == {policy.version}
    assert any(a.tokens.tolist() != b.tokens.tolist() for a, b in zip(after, before, strict=True))


def test_a_server_that_goes_while_it_takes_weights_costs_the_ranks_nothing(many: tuple[ShardedPolicy, Path], model: Path):
    policy, asked = many[0], requests(24)
    policy.sample(asked, SAMPLING)
    policy.update(a_batch(asked), [Weighted()], 10 * LR)
    process = process_of(policy, 0)
    os.kill(process, signal.SIGSTOP)  # so that it is told to take them and does not
    threading.Timer(3.0, os.kill, (process, signal.SIGKILL)).start()
    with pytest.warns(UserWarning, match="server 0 .* was lost"):
        again = policy.sample(asked, SAMPLING)
    assert {c.version for c in again} == {policy.version}
    truth = policy.logprobs([r.prompt for r in asked], [c.tokens for c in again])
    assert max(abs(mine.logprobs - said).max() for mine, said in zip(again, truth, strict=True)) < 1e-4


def test_adapters_and_other_words_are_refused():
    with pytest.raises(TacitError, match="adapters go as files: leave it at auto"):
        ShardedSettings(handover="direct", lora_rank=4)
    with pytest.raises(TacitError, match="handover = 'pigeon' must be one of auto, files, direct"):
        ShardedSettings(handover="pigeon")  # type: ignore[arg-type]
    ShardedSettings(servers=1, address="auto", handover="direct")
    with pytest.raises(TacitError, match=r"--engine.exchange DIR, or .*--engine.handover direct"):
        ShardedSettings(servers=1, address="auto")
