"""Run untrusted commands without network, home directory, inherited environment or surviving processes.

    with Sandbox() as sandbox:
        workspace = sandbox.copy(Path("my_repository"))
        result = workspace.run(["bash", "-c", "python -m pytest -q"])
        print(result.code, result.output)

`server.py` describes the isolation. If the kernel does not allow user namespaces, bubblewrap isolates instead. If it is not
installed either, `Sandbox()` raises TacitError with the reason. `Sandbox(mode="none")` sets limits but does not isolate.
"""

from __future__ import annotations

from tacit.sandbox.client import Limits, Result, Sandbox, Workspace

__all__ = ["Limits", "Result", "Sandbox", "Workspace"]
