"""The module card: hostile manifest values cannot inject markup, YAML or control characters."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_modules import change_manifest

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.modules import read_module
from tacit.modules.export import render_card
from tacit.modules.module import LICENSE_FIELD, Module

HOSTILE = (
    "x\nlicense: mit\ntags: [evil]",
    "x\r\n---\n# Other",
    "x: {y",
    "]\nevil: [",
    "!!python/object/apply:os.system ['touch ran']",
    "&a *a",
    "` | <script>alert(1)</script> |",
    "<img src=x onerror=alert(1)>",
    "![x](http://evil.example/x.png) [y](javascript:alert(1))",
    "\x1b[2J\x1b]0;title\x07\u202eevil\u2028\ud800\x00",
    "y" * 1_000_000,
    '"quoted\\',
    "{module.path}{0}",
)


def poison(module: Module, text: str) -> Module:
    """The module with `text` in every free value of its manifest."""
    score = {"success": 0.5, "interval": [0.1, 0.9], "episodes": text, "panel": text, "panel_hash": text}
    return dataclasses.replace(
        module,
        world=text,
        families=(text,) * 3,
        tracker=text,
        wording=text,
        context={"kind": text},
        base=dataclasses.replace(module.base, model=text),
        fingerprint=text,
        scores={text: score, "rl": score},
        digest=text,
        run={"name": text, "checkpoint": text},
        code={"tacit": text},
    )


@pytest.fixture
def heat(modules: Path) -> Module:
    return read_module(modules / "heat")


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
def test_manifest_values_cannot_inject_markup_into_the_card(heat: Module, text: str) -> None:
    card = render_card(poison(heat, text), text)
    expected = render_card(poison(heat, "plain"), "plain")
    assert len(card.splitlines()) == card.count("\n") == expected.count("\n")
    assert [line.count("|") for line in card.splitlines()] == [line.count("|") for line in expected.splitlines()]
    assert [line.count("`") for line in card.splitlines()] == [line.count("`") for line in expected.splitlines()]
    assert not re.search(r"[<>\x00-\x09\x0b-\x1f\x7f\u202e\ud800]|\]\(", card)
    assert max(map(len, card.splitlines())) < 3000
    front = yaml.safe_load(card.split("---\n")[1])
    assert list(front) == ["base_model", "license", "library_name", "tags"] and len(front["tags"]) == 4
    assert all(isinstance(value, str) for value in (front["base_model"], front["license"], *front["tags"]))


def test_invalid_numbers_in_a_manifest_are_refused(heat: Module, tmp_path: Path) -> None:
    module = shutil.copytree(heat.path, tmp_path / "heat")
    score = heat.scores["rl"]
    wrong: list[dict[str, Any]] = [{}, *({**score, "interval": own} for own in ([1], 3, ["x", "y"], [0, 1, 2]))]
    wrong += [{**score, **own} for own in ({"success": "<b>"}, {"episodes": None}, {"panel": 3}, {"panel_hash": []})]
    changes = [*({"scores": {"rl": one}} for one in wrong), {"sampling": {"temperature": 10**400}}, {"run": {"name": "x"}}]
    for change in changes:
        change_manifest(module, **change)
        with pytest.raises(TacitError, match="cannot read the module"):
            read_module(module)
        change_manifest(module, **{name: heat.to_json()[name] for name in change})
    read_module(module)
    assert "Not evaluated." in render_card(dataclasses.replace(heat, scores={}), "mit")


def test_license_search_takes_linear_time() -> None:
    assert LICENSE_FIELD.search("---\nlicense: mit\n---\n")[1] == "mit"  # type: ignore[index]
    for text in ("---" + "\n" * 100_000, "---\n" + "license:\n" * 20_000, "---\nlicense:" + " " * 100_000 + "\n"):
        assert LICENSE_FIELD.search(text) is None


def test_errors_with_hostile_file_names_contain_no_control_characters(heat: Module, tmp_path: Path, capsys) -> None:
    module = shutil.copytree(heat.path, tmp_path / "heat")
    change_manifest(module, files={**heat.files, "\x1b]0;title\x07\x1b[2J\u202e\r": "0" * 64})
    assert main(["modules", "pack", str(module), str(tmp_path / "x.tacit")]) == 2
    errors = capsys.readouterr().err
    assert "is missing" in errors and errors.rstrip("\n").isprintable()
