"""Runs kernels in Triton's interpreter, without a GPU. In a separate process, because Triton chooses it at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Loop bounds are arrays of one number. numpy 2.4 no longer accepts those as an index.
PRELUDE = """
from triton.runtime import interpreter
if hasattr(interpreter, "_patch_lang_tensor"):
    def patched(tensor, *scope, patch=interpreter._patch_lang_tensor):
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())
    interpreter._patch_lang_tensor = patched
"""


def assert_interpreted(program: str) -> None:
    """Runs the program with interpreted kernels; it must exit without an error. Skips if Triton is missing or cannot."""
    done = _run(PRELUDE + program, "1")
    if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
        pytest.skip("this triton's interpreter takes a scalar for an array, which a loop's end may not be in this numpy (2.4)")
    assert done.returncode == 0, done.stderr


def assert_compiled(program: str) -> None:
    """Runs a program that compiles its kernels; no GPU is needed."""
    done = _run(program, "0")
    assert done.returncode == 0, done.stderr


def _run(program: str, interpreted: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": interpreted, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
