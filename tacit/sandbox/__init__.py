"""Run untrusted commands without network, home directory, inherited environment or surviving processes.

    with Sandbox() as sandbox:
        workspace = sandbox.copy(Path("my_repository"))
        result = workspace.run(["bash", "-c", "python -m pytest -q"])
        print(result.code, result.output)

Any world can use it. `server.py` says how isolation works. Where the kernel allows no user namespaces, bubblewrap isolates, if
it is installed; else `Sandbox()` refuses with the reason. `Sandbox(mode="none")` sets limits and isolates nothing.
"""

from __future__ import annotations

from tacit.sandbox.client import Limits, Result, Sandbox, Workspace

__all__ = ["Limits", "Result", "Sandbox", "Workspace"]
