"""Servers that cannot start are refused with the remedy, with or without vLLM on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from forked_ranks import forked_ranks

from tacit.core.errors import TacitError
from tacit.core.protocols import ModelSource
from tacit.engines import SHARDED
from tacit.engines.local.model import load_pretrained
from tacit.engines.local.settings import EngineSettings
from tacit.engines.sharded import policy
from tacit.engines.sharded import servers as handing_over
from tacit.engines.sharded.launch import WorkerLost
from tacit.engines.sharded.policy import load_policy
from tacit.engines.sharded.rank import Rank
from tacit.engines.sharded.servers import Replica, Server, ServerPool, TransferredWeights, WeightTransfer
from tacit.engines.sharded.settings import ShardedSettings, check_servers
from tacit.testing.engines import small_checkpoint


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"servers": -1}, "must not be negative"),
        ({"servers": 1, "server_memory": 1.5}, "server_memory = 1.5"),
        ({"servers": 1, "address": "auto", "exchange": "/x", "server_python": "python3"}, "install vLLM there"),
        ({"servers": 1, "address": "auto"}, "--engine.exchange"),
        ({"servers": 1, "lora_rank": 1024}, "lora_rank = 1024"),
    ],
)
def test_impossible_server_settings_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(TacitError, match=words):
        ShardedSettings(**settings)


@pytest.mark.usefixtures("trusted_code")
def test_servers_without_vllm_are_refused_before_anything_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for fit in (lambda s: SHARDED.load(ModelSource("no/where"), s), lambda s: SHARDED.fit(s, frozenset())):
        with pytest.raises(TacitError, match=r"servers = 2 needs vLLM, which is not installed in this environment\. Run"):
            fit(ShardedSettings(servers=2))
        with pytest.raises(TacitError, match=r"not installed in .*false.*--engine.server-python"):
            fit(ShardedSettings(servers=1, server_python="/bin/false"))
        with pytest.raises(TacitError, match="cannot start a server with /no/such/python"):
            fit(ShardedSettings(servers=1, server_python="/no/such/python"))
    check_servers(ShardedSettings(servers=1, address="auto", exchange="/x"))  # the cluster's machines are not checked
    check_servers(ShardedSettings())


@pytest.fixture
def ranks() -> Iterator[None]:
    with forked_ranks():
        yield


@pytest.mark.slow
def test_server_python_without_vllm_is_named(tmp_path: Path, ranks: None) -> None:
    checkpoint = small_checkpoint(tmp_path)
    for python, words in (
        ("/bin/false", r"server 0 \(process \d+\) did not start: .*exited with code 1.*--engine.server-python"),
        ("/no/such/python", "cannot start a server with /no/such/python"),
    ):
        with pytest.raises(TacitError, match=words):
            load_policy(ModelSource(str(checkpoint)), ShardedSettings(device="cpu", threads=1, servers=1, server_python=python))


def test_unwritable_exchange_directory_is_named(tmp_path: Path, ranks: None) -> None:
    (tmp_path / "file").write_text("")
    settings = ShardedSettings(device="cpu", threads=1, servers=1, exchange=str(tmp_path / "file" / "below"))
    with pytest.raises(TacitError, match=r"cannot write to --engine.exchange"):
        load_policy(ModelSource(str(small_checkpoint(tmp_path))), settings)


def test_servers_use_the_gpus_in_cuda_visible_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was given GPUs 2 and 5 must not start servers on 0 and 1, which belong to other jobs."""
    assert policy.gpu_names(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-5")
    assert policy.gpu_names(2) == ["2", "GPU-5"]


@pytest.mark.parametrize(
    ("ranks", "servers", "gpus", "share"), [(1, 1, 2, 0.85), (1, 1, 1, 0.3), (1, 2, 1, 0.15), (2, 2, 2, 0.3)]
)
def test_servers_leave_gpu_memory_for_the_rank(ranks: int, servers: int, gpus: int, share: float) -> None:
    assert ShardedSettings(ranks=ranks, servers=servers).server_share(gpus) == pytest.approx(share)
    assert ShardedSettings(ranks=ranks, servers=servers, server_memory=0.4).server_share(gpus) == 0.4


class _OneRank:
    """Two ranks, of which the first cannot write the weights."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        assert method == "write_weights"
        rank = Rank(0, "")
        rank.dtype = torch.float32
        rank.members = {"default": type("Member", (), {"gather": lambda *_, **__: iter([("w", torch.zeros(3))])})()}
        arguments[1].with_suffix(".unfinished").mkdir()  # nothing can be written there
        return [rank.write_weights(*arguments), ""]


def test_failed_weight_write_is_named_and_loses_no_rank(tmp_path: Path) -> None:
    with_nothing = type("Replica", (), {"adapters": None, "model": _Model, "codec": _Codec})
    transfer = WeightTransfer(_OneRank(), with_nothing(), str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(TacitError, match=r"cannot write weights to .*--engine.exchange"):
        transfer.publish("default", 1)
    transfer.close()


class _Model:
    vocabulary = 100


class _Codec:
    context_limit = 64


def test_shared_memory_is_used_only_if_the_weights_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container often has only 64 MB of shared memory."""
    member = type("Member", (), {"parameters": {"w": torch.zeros(1000)}})
    replica = type("Replica", (), {"members": {"default": member}})
    for free, place in ((9_999, Path(tempfile.gettempdir())), (10_000, handing_over.MEMORY)):
        monkeypatch.setattr(handing_over.shutil, "disk_usage", lambda _, free=free: type("Usage", (), {"free": free}))
        assert handing_over.choose_directory(replica) == place  # type: ignore[arg-type]


def test_replica_without_local_sampling_skips_the_packed_decoder_check(tmp_path: Path) -> None:
    """The check takes minutes on many CPUs in bfloat16, and the driver computes nothing with this copy."""
    hf, tokenizer = load_pretrained(str(small_checkpoint(tmp_path)), torch.device("cpu"), torch.float32)
    replicas = [
        Replica(hf, tokenizer, EngineSettings(device="cpu"), 0, lambda _: 0, bytes, samples) for samples in (True, False)
    ]
    assert [replica.model.packed_decoder is None for replica in replicas] == [False, True]


def test_last_output_of_a_lost_server_is_in_the_warning() -> None:
    """The restarted server overwrites the log, so its end is read before."""
    server = MagicMock(spec=Server, deaths=0, under_way={})
    server.last_output.return_value = " Its last output: CUDA out of memory."
    server.launch.side_effect = lambda: server.last_output.configure_mock(return_value="")
    servers = object.__new__(ServerPool)
    servers.servers, servers.restarted, servers.transfer = [server], 0, SimpleNamespace(newest={})
    with pytest.warns(UserWarning, match=r"was lost: it left with exit code 1\. .*last output: CUDA out of memory"):
        servers.restart_on_death(MagicMock(side_effect=WorkerLost(server, "it left with exit code 1")))
    assert servers.restarted == 1 and server.open.call_count == 1


class FailingServer(Server):
    """Its process answers every call with an error."""

    error = "FileNotFoundError: No such file or directory: /x/default-1"

    def send(self, message: bytes, limit_s: float) -> None:
        self._answers, process = Pipe(duplex=False)
        process.send(("answer", (False, (None, self.error))))

    @property
    def channel(self) -> Any:
        return SimpleNamespace(connection=self._answers)

    def receive(self) -> Any:
        return self._answers.recv()


def test_server_that_cannot_read_the_weights_is_reported_with_the_remedy() -> None:
    """For example on a cluster whose machines do not share the directory."""
    server = FailingServer(0, MagicMock(role=SimpleNamespace(name="server")), MagicMock(), 1.0, 1.0)
    with pytest.raises(TacitError, match=r"server 0 .*'load'.*/x/default-1\. .*--engine.exchange.*--engine.server-memory"):
        server.load_weights(TransferredWeights("default", 1, "/x/default-1", ()), ())
