"""The package has no import cycles, and lint-imports covers all of it."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from pkgutil import iter_modules

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_part_of_the_package_has_an_import_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {part for contract in contracts for layer in contract.get("layers", ()) for part in layer.split(" | ")}
    sources = {module.removeprefix("tacit.") for contract in contracts for module in contract.get("source_modules", ())}
    parts = {module.name for module in iter_modules([str(ROOT / "tacit")])} - {"__main__"}
    assert parts <= layers | sources


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
