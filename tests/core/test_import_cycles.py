"""The package has no import cycles."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_there_are_no_import_cycles():
    """Imports inside functions count; imports for type checking do not."""
    modules = {}
    for path in (ROOT / "tacit").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        modules[name] = ast.parse(path.read_text(encoding="utf-8"))
    imports = defaultdict(set)
    for name, tree in modules.items():
        unchecked = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and id(node) not in unchecked:
                targets = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
                found = {target for target in targets if target in modules and target != name}
                # `from package import module` needs the module, not the package's own names
                imports[name] |= found - {node.module} if found - {node.module} else found
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
