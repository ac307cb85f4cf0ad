"""bm25s must not import JAX, even if JAX is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(("first", "jax"), [("", False), ("import jax; ", True)])
def test_bm25s_uses_jax_only_if_already_imported(tmp_path: Path, first: str, jax: bool) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*_): return None")
    ask = "from tacit.worlds.searchqa.retrieval import Bm25; Bm25(['a river']).find('river', 1)"
    report = "from bm25s import selection; print(selection.JAX_IS_AVAILABLE, 'jax' in sys.modules)"
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {first}{ask}; {report}"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert output == [str(jax), str(jax)]
