"""Commands in processes of their own."""

from __future__ import annotations

import os

from tacit.comparison.processes import Processes


def tell(names: list[str]) -> int:
    print(*(os.environ[name] for name in names))
    return 0


def test_each_sees_the_environment_as_it_is_when_it_is_started(tmp_path, monkeypatch):
    """The server they are forked from was started with the first of these."""
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # which they set: it ends with this test
    processes = Processes(tell, most=1)
    for place in ("here", "there"):
        monkeypatch.setenv("TACIT_CACHE", place)
        command = processes.start(["TACIT_CACHE"], tmp_path / place)
        command.wait(120)
        assert command.code == 0 and (tmp_path / place).read_text().endswith(f"\n{place}\n")
