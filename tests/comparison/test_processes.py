"""Subprocesses of `tacit compare`."""

from __future__ import annotations

import os

import pytest

from tacit.comparison.run import Processes


def tell(names: list[str]) -> int:
    print(*(os.environ[name] for name in names))
    return 0


@pytest.mark.parametrize(("most", "printed"), [(2, "true 3"), (5, "false 1"), (9, "false 1")])
def test_tokenizer_threads_are_each_runs_share_of_the_cores(most, printed, tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.comparison.run.usable_cpus", lambda: 6)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # set by Processes, like the next; monkeypatch restores both
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    processes = Processes(tell, most)
    for variables, expected in (({}, printed), ({"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "4"}, "false 4")):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        command = processes.start(["TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"], tmp_path / "log")
        command.wait(120)
        assert command.code == 0 and (tmp_path / "log").read_text().endswith(f"\n{expected}\n")


def test_subprocess_gets_the_current_environment(tmp_path, monkeypatch):
    """The fork server was started with the first environment."""
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # set by Processes; monkeypatch restores it
    processes = Processes(tell, max_running=1)
    for place in ("here", "there"):
        monkeypatch.setenv("TACIT_CACHE", place)
        command = processes.start(["TACIT_CACHE"], tmp_path / place)
        command.wait(120)
        assert command.code == 0 and (tmp_path / place).read_text().endswith(f"\n{place}\n")
