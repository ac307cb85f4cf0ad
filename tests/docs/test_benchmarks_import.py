"""What benchmarks and examples import from tacit exists."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tacit.core.errors import TacitError

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_imported_names_exist(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tacit":
            try:
                module = importlib.import_module(str(node.module))
            except TacitError as error:
                pytest.skip(str(error))  # an optional package is not installed
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or find_spec(f"{node.module}.{name}"), f"{node.module} has no {name}"
