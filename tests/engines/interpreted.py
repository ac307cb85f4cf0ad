"""Triton's interpreter, for kernels where there is no GPU: in a process of its own, since it is chosen at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# where a loop ends comes as an array of one number, which numpy takes for an index no more since 2.4
PRELUDE = """
from triton.runtime import interpreter
if hasattr(interpreter, "_patch_lang_tensor"):
    def patched(tensor, *scope, patch=interpreter._patch_lang_tensor):
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())
    interpreter._patch_lang_tensor = patched
"""


def assert_interpreted(program: str) -> None:
    """The program ends without an error, its kernels interpreted. Skips where there is no triton, or none that can."""
    done = _run(PRELUDE + program, "1")
    if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
        pytest.skip("this triton's interpreter takes a scalar for an array, which a loop's end may not be in this numpy (2.4)")
    assert done.returncode == 0, done.stderr


def assert_compiled(program: str) -> None:
    """The same of a program that compiles its kernels, for a GPU that need not be there."""
    done = _run(program, "0")
    assert done.returncode == 0, done.stderr


def _run(program: str, interpreted: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": interpreted, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
