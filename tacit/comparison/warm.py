"""Imports all of Tacit for the server that comparison runs are forked from.

It runs no model, starts no thread and uses no GPU, so that it can be forked safely.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import tacit
from tacit.runs.directory import code_version

LIBRARIES = ("peft", "torch.utils.tensorboard", "transformers.models.llama.modeling_llama")


def modules() -> list[str]:
    """All modules of the package but this one."""
    root = Path(tacit.__file__).parent
    files = [file.relative_to(root.parent).with_suffix("") for file in sorted(root.rglob("*.py"))]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    return [name for name in names if name != __name__]


for _name in (*LIBRARIES, *modules()):
    try:
        import_module(_name)
    except Exception:  # an optional dependency is not installed; a run that needs it will report that
        continue
code_version()
