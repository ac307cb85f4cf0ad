"""Modules are added, replaced and refused while the server runs; sessions keep the module they started with."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from served import WORLD, Served, played, served
from small_modules import RECIPE, change_manifest, train_modules, write_recipe

from tacit.cli.main import main

GOAL, SEEN = "put a hot mug in cabinet.", "You are in the middle of a room. Looking quickly around you, you see a fridge 1."


@pytest.fixture
def shelf(modules: Path, tmp_path: Path) -> Path:
    """A private directory with one module."""
    shutil.copytree(modules / "heat", tmp_path / "shelf" / "heat")
    return tmp_path / "shelf"


def put(source: Path, place: Path) -> None:
    """Copies a module into place with one rename, like an export."""
    new = place.with_name(f".{place.name}.tmp")
    shutil.copytree(source, new)
    if place.exists():
        shutil.rmtree(place)
    new.rename(place)


@pytest.mark.slow
def test_modules_are_added_replaced_and_removed_without_a_restart(modules: Path, shelf: Path) -> None:
    task = WORLD.tasks_of("seen", 1, 3, ("heat",))[0]
    with served(shelf) as server:
        assert server.refusal("/sessions", {"goal": GOAL, "family": "pick"})[0] == 404
        put(modules / "pick", shelf / "pick")
        assert server.post("/modules/refresh") == {"added": ["alfworld/pick"], "replaced": [], "removed": [], "refused": {}}
        server.begin(GOAL, "pick")
        before = played(server, task, 3, 7)
        old = server.begin(task.goal, "heat", seed=7)
        # The other adapter under heat's name. A session that started before keeps its adapter.
        put(modules / "pick", shelf / "heat")
        change_manifest(shelf / "heat", skill="heat", families=["heat"])
        assert server.post("/modules/refresh")["replaced"] == ["alfworld/heat"]
        world, seen, actions = WORLD.make(), WORLD.make().reset(task), []
        world.reset(task)
        for _ in range(3):
            actions.append(server.post(f"{old}/observe", {"observation": seen.text, "actions": list(seen.actions)})["action"])
            seen = world.step(actions[-1]).observation
        assert actions == before
        digests = {m["name"]: m["digest"] for m in server.get("/modules")["modules"]}
        assert digests["alfworld/heat"] == digests["alfworld/pick"] != server.get(old)["digest"]
        server.post(f"{old}/end")
        new = server.begin(task.goal, "heat", seed=7)
        assert server.get(new)["digest"] == digests["alfworld/pick"], "new sessions use the new adapter"
        server.post(f"{new}/end")
        shutil.rmtree(shelf / "pick")
        assert server.post("/modules/refresh")["removed"] == ["alfworld/pick"]
        assert server.refusal("/sessions", {"goal": GOAL, "family": "pick"})[0] == 404


@pytest.mark.slow
def test_damaged_module_is_refused_and_served_as_before(modules: Path, shelf: Path) -> None:
    with served(shelf) as server:
        path = server.begin(GOAL, "heat")
        weights = shelf / "heat" / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        refused = server.post("/modules/refresh")["refused"]
        assert list(refused) == ["alfworld/heat"] and "adapter_model.safetensors is damaged (sha256" in refused["alfworld/heat"]
        assert server.post(f"{path}/observe", {"observation": SEEN})["turn"] == 1
        server.begin(GOAL, "heat")


@pytest.fixture(scope="module")
def foreign_module(cache, tmp_path_factory) -> Path:
    """A module on another base."""
    place = tmp_path_factory.mktemp("foreign_module")
    recipe = write_recipe(place, RECIPE.replace("hidden = 32", "hidden = 48").replace("steps = 60", "steps = 2"))
    assert train_modules(recipe, place / "modules", "--skills", "pick", "--iterations", "0") == 0
    return place / "modules" / "pick"


@pytest.mark.slow
def test_module_for_another_base_is_refused(shelf: Path, foreign_module: Path, capsys) -> None:
    with served(shelf) as server:
        put(foreign_module, shelf / "pick")
        refused = server.post("/modules/refresh")["refused"]
        assert "server has loaded 'tiny' with" in refused["alfworld/pick"], refused
        server.begin(GOAL, "heat")
    assert main(["serve", str(shelf), "--port", "0"]) == 2
    assert "use a separate server" in capsys.readouterr().err


@pytest.mark.slow
def test_server_that_cannot_start_reports_why_and_exits(modules: Path, shelf: Path, capsys) -> None:
    (shelf / "heat" / "adapter_config.json").write_text("{}")
    assert main(["serve", str(shelf), "--port", "0"]) == 2
    assert "adapter_config.json is damaged" in capsys.readouterr().err
    assert main(["serve", str(shelf.parent / "nowhere"), "--port", "0"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["serve", str(modules), "--host", "0.0.0.0", "--no-token"]) == 2
    assert "--no-token needs a local host" in capsys.readouterr().err
    assert main(["serve", str(modules), "--fallback", "cook", "--port", "0"]) == 2
    assert "fallback 'cook' is not one of the modules" in capsys.readouterr().err
    assert main(["serve", str(modules), "--sessions", "0"]) == 2
    assert "sessions = 0 must be at least 1" in capsys.readouterr().err


def test_port_in_use_is_reported(modules: Path, server: Served, capsys) -> None:
    assert main(["serve", str(modules), "--port", str(server.port)]) == 2
    assert f"cannot listen on 127.0.0.1 port {server.port}" in capsys.readouterr().err


NONSENSE = (
    '{"format": 1}',
    "[" * 100_000,
    {"scores": 5},
    {"scores": {"rl": 5}},
    {"scores": {"rl": {"success": float("nan")}}},
    {"skill": ["heat"]},
    {"skill": "\ud800"},
    {"families": [["heat"]]},
    {"families": 5},
    {"context": {"kind": [], "wording": {}}},
    {"context": {"kind": "state_block", "wording": ["terse"], "form": []}},
    {"base": {"model": 5, "seed": 0, "fingerprint": "x"}},
    {"sampling": {"temperature": "warm"}},
    {"max_steps": "many"},
    {"files": ["x"]},
    {"files": {"x": 5}},
    {"world": 5},
    {"draft": 5},
    {"draft": {"files": [5], "kind": "tracker", "name": "x", "world": "", "block": ""}},
)


@pytest.mark.slow
def test_invalid_manifest_is_named_and_other_modules_are_served(modules: Path, shelf: Path) -> None:
    sound = json.loads((modules / "pick" / "module.json").read_text())
    with served(shelf) as server:
        put(modules / "pick", shelf / "pick")
        manifest = shelf / "pick" / "module.json"
        for wrong in NONSENSE:
            if isinstance(wrong, str):
                manifest.write_text(wrong)
            else:
                manifest.write_text(json.dumps(sound))
                change_manifest(shelf / "pick", **wrong)  # with a valid hash, so that the value is refused
            changes = server.post("/modules/refresh")
            assert len(changes["refused"]) == 1 and str(shelf / "pick") in str(changes["refused"]), (wrong, changes)
            assert [module["name"] for module in server.get("/modules")["modules"]] == ["alfworld/heat"]
        manifest.write_text(json.dumps(sound))
        assert server.post("/modules/refresh")["added"] == ["alfworld/pick"]
        change_manifest(shelf / "pick", scores=5)
        assert list(server.post("/modules/refresh")["refused"]) == ["alfworld/pick"]
        server.begin(GOAL, "pick")


@pytest.mark.slow
def test_manifest_control_characters_are_escaped_in_the_log(modules: Path, shelf: Path) -> None:
    with served(shelf) as server:
        put(modules / "pick", shelf / "pick")
        manifest = shelf / "pick" / "module.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"world": "\x1b[2Jnowhere"}))
        os.kill(server.process.pid, signal.SIGHUP)
        server.process.until(lambda: "nowhere" in server.complaints)
        assert "\\x1b[2Jnowhere" in server.complaints and "\x1b" not in server.complaints


@pytest.mark.slow
def test_module_whose_world_became_unknown_is_served_as_before(modules: Path, shelf: Path) -> None:
    manifest = shelf / "heat" / "module.json"
    with served(shelf) as server:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"world": "nowhere"}))
        changes = server.post("/modules/refresh")
        assert "unknown world 'nowhere'" in changes["refused"]["alfworld/heat"] and not changes["removed"], changes
        server.begin(GOAL, "heat")
