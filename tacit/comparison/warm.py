"""Importing this imports all of Tacit and what training needs: for the server that runs are forked from, and nobody else.

It runs no model, starts no thread and touches no GPU, so that what is forked is as good as new. All runs of a comparison are
thereby made by the code as it was when the comparison began, and say so.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import tacit
from tacit.runs.directory import code_version

LIBRARIES = ("peft", "torch.utils.tensorboard", "transformers.models.llama.modeling_llama")


def modules() -> list[str]:
    """The names of all modules of the package, this one left out."""
    root = Path(tacit.__file__).parent
    files = [file.relative_to(root.parent).with_suffix("") for file in sorted(root.rglob("*.py"))]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    return [name for name in names if name != __name__]


for _name in (*LIBRARIES, *modules()):
    try:
        import_module(_name)
    except Exception:  # an optional dependency that is not installed; a run that needs it will say so itself
        continue
code_version()
