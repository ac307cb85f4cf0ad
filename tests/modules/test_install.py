"""Packing and installing modules: what is checked, and what an untrusted archive cannot do."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.modules import read_module
from tacit.modules.module import MANIFEST, OWN_LICENSE, Base, find_license, hash_manifest
from tacit.modules.sharing import Verdict, pack
from tacit.worlds import get_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def package(modules, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("packed") / "heat.tacit"
    pack(read_module(modules / "heat"), file)
    return file


def install(source: Any, out: Path, *flags: str) -> int:
    return main(["modules", "install", str(source), "--out", str(out), *flags])


def refused(capsys, source: Any, out: Path, *flags: str) -> str:
    assert install(source, out, *flags) == 2
    assert not out.exists(), "nothing is written before everything was checked"
    return capsys.readouterr().err


def rewritten(package: Path, file: Path, change: Any) -> Path:
    """A copy of the package after `change(entries)`; entries: name -> bytes."""
    with zipfile.ZipFile(package) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file


def manifest_with(**changes: Any) -> Any:
    def change(entries: dict[str, bytes]) -> None:
        data = {**json.loads(entries[MANIFEST]), **changes}
        entries[MANIFEST] = json.dumps({**data, "sha256": hash_manifest(data)}).encode()

    return change


def test_packed_module_installs_unchanged(modules, package, tmp_path, capsys):
    out = tmp_path / "mine"
    assert install(package, out) == 0
    assert f"heat: installed in {out / 'heat'}, for heat" in capsys.readouterr().out
    before, after = read_module(modules / "heat"), read_module(out / "heat")
    assert after.to_json() == before.to_json() and not after.find_damage()
    with zipfile.ZipFile(package) as archive:
        card = archive.read("README.md").decode()
    low, high = before.scores["rl"]["interval"]
    for text in (
        f"| base | `tiny`, fingerprint `{before.fingerprint}` |",
        "| world | `alfworld` |",
        f"| tracker | version {before.tracker} |",
        f"[{low:.1%}, {high:.1%}] | 4 | alfworld/seen/4[heat] | `{before.scores['rl']['panel_hash']}` |",
        "tacit eval modules/heat",
    ):
        assert text in card, text
    assert f"license: {OWN_LICENSE}" in card and (out / "heat" / "README.md").read_text() == card
    assert install(package, out) == 0 and "already in" in capsys.readouterr().out
    assert main(["modules", "verify", str(out)]) == 0 and main(["modules", "list", str(out)]) == 0


def test_packing_is_deterministic_also_for_installed_modules(modules, package, tmp_path, capsys):
    install(package, tmp_path / "mine")
    again = tmp_path / "again.tacit"
    assert main(["modules", "pack", str(tmp_path / "mine" / "heat"), str(again)]) == 0
    assert again.read_bytes() == package.read_bytes()
    assert hashlib.sha256(again.read_bytes()).hexdigest() in capsys.readouterr().out
    assert main(["modules", "pack", str(modules / "heat"), str(again)]) == 2
    assert "overwrite it with --replace" in capsys.readouterr().err
    assert main(["modules", "pack", str(modules), str(tmp_path / "x")]) == 2 and "is not a module" in capsys.readouterr().err


def test_changed_missing_or_extra_files_are_refused(package, tmp_path, capsys):
    def flip(entries):
        data = bytearray(entries["adapter_model.safetensors"])
        data[-1] ^= 1
        entries["adapter_model.safetensors"] = bytes(data)

    out = tmp_path / "out"
    assert "is damaged (sha256" in refused(capsys, rewritten(package, tmp_path / "a", flip), out)
    incomplete = rewritten(package, tmp_path / "b", lambda e: e.pop("adapter_model.safetensors"))
    assert "adapter_model.safetensors is missing" in refused(capsys, incomplete, out)
    assert "it has no module.json" in refused(capsys, rewritten(package, tmp_path / "c", lambda e: e.pop(MANIFEST)), out)
    more = rewritten(package, tmp_path / "d", lambda e: e.update({"x.json": b""}))
    assert "contains x.json, which its module.json does not list" in refused(capsys, more, out)
    large = rewritten(package, tmp_path / "e", lambda e: e.update({MANIFEST: b" " * (1 << 23)}))
    assert "more than 4,194,304 bytes" in refused(capsys, large, out)
    (tmp_path / "half").write_bytes(package.read_bytes()[:5000])
    assert "is not a module archive, or is damaged" in refused(capsys, tmp_path / "half", out)
    digest = "0" * 64
    assert f"not {digest}" in refused(capsys, package, out, "--sha256", digest)


@pytest.mark.parametrize(
    "name", ["../evil.json", "/tmp/evil.json", "a/b.json", "..", ".hidden.json", "C:\\evil.json", "x\n.json"]
)
def test_unsafe_file_names_are_refused(package, tmp_path, capsys, name):
    def escape(entries):
        entries[name] = b"{}"

    assert "unsafe name" in refused(capsys, rewritten(package, tmp_path / "p", escape), tmp_path / "out")
    assert "cannot be used as a directory name" in refused(
        capsys, rewritten(package, tmp_path / "q", manifest_with(skill=name.removesuffix(".json") + "/x")), tmp_path / "out"
    )
    files = {name: "0" * 64}
    assert "unsafe name" in refused(capsys, rewritten(package, tmp_path / "r", manifest_with(files=files)), tmp_path / "out")
    assert not list(tmp_path.rglob("evil*")) and not Path("/tmp/evil.json").exists()


def test_links_code_compression_duplicates_and_large_files_are_refused(package, tmp_path, capsys):
    out = tmp_path / "out"

    def crafted(name: str, *entries: tuple[zipfile.ZipInfo, bytes]) -> Path:
        shutil.copyfile(package, tmp_path / name)
        with zipfile.ZipFile(tmp_path / name, "a") as archive:
            for entry, data in entries:
                archive.writestr(entry, data)
        return tmp_path / name

    link = zipfile.ZipInfo("link.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "contains link.json, which its module.json does not" in refused(capsys, crafted("link", (link, b"/etc/passwd")), out)
    packed = zipfile.ZipInfo("bomb.json")
    packed.compress_type = zipfile.ZIP_DEFLATED
    assert "more than the limit" in refused(capsys, crafted("bomb", (packed, b"0" * 10_000_000)), out, "--max-mb", "1")
    with pytest.warns(UserWarning, match="Duplicate name"):
        twin = crafted("twin", (zipfile.ZipInfo(MANIFEST), b"{}"))
    assert "twice" in refused(capsys, twin, out)
    assert "may only contain tensors and text" in refused(capsys, crafted("code", (zipfile.ZipInfo("world.py"), b"x")), out)
    assert "may only contain tensors and text" in refused(capsys, crafted("pickle", (zipfile.ZipInfo("model.bin"), b"x")), out)
    giant = crafted("giant", (zipfile.ZipInfo("big.json"), b"0" * 2_000_000))
    assert "more than the limit of 1,000,000; raise it with --max-mb" in refused(capsys, giant, out, "--max-mb", "1")


def test_incompatible_or_untrusted_module_is_refused(package, modules, tmp_path, capsys):
    out, manifest = tmp_path / "out", json.loads((modules / "heat" / MANIFEST).read_text())
    other = {**manifest["base"], "fingerprint": "0" * 64}
    message = refused(capsys, rewritten(package, tmp_path / "a", manifest_with(base=other)), out)
    assert f"with fingerprint {'0' * 64}, but base 'tiny' has {manifest['base']['fingerprint']}" in message
    assert "tacit-install-" not in message, "where it was unpacked is nobody's business"
    assert "trained with tracker 'alfworld-0'" in refused(
        capsys, rewritten(package, tmp_path / "b", manifest_with(tracker="alfworld-0")), out
    )
    assert "has format 9" in refused(capsys, rewritten(package, tmp_path / "c", manifest_with(format=9)), out)
    (tmp_path / "world.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    evil = manifest_with(world=f"{tmp_path / 'world.py'}:WORLD")
    assert "--trust-code" in refused(capsys, rewritten(package, tmp_path / "d", evil), out)
    (tmp_path / "my own").mkdir()
    (tmp_path / "my own" / "world.py").write_text((tmp_path / "world.py").read_text())
    for name in ("this:0", "this:", f"{tmp_path / 'my own' / 'world.py'}:WORLD", f"a:{tmp_path / 'world.py'}:WORLD"):
        assert "--trust-code" in refused(capsys, rewritten(package, tmp_path / "d", manifest_with(world=name)), out), name
    assert "this" not in sys.modules, "a name is not tried before it is trusted"
    settings = {**manifest["run"]["settings"], "method": {"name": f"{tmp_path / 'world.py'}:METHOD"}}
    evil = manifest_with(run={**manifest["run"], "settings": settings})
    assert "--trust-code" in refused(capsys, rewritten(package, tmp_path / "e", evil), out)
    assert not (tmp_path / "ran").exists(), "nothing of the sender's was run"


@pytest.mark.parametrize("junk", [None, 3, "text", [], {"a": []}, [[1]]])
def test_malformed_manifest_values_are_refused(package, tmp_path, capsys, junk):
    for key in ("world", "skill", "families", "tracker", "context", "weights", "base", "sampling", "scores", "run", "files"):
        if (key, junk) in (("tracker", None), ("skill", "text"), ("scores", [])):
            continue  # these values are valid
        message = refused(capsys, rewritten(package, tmp_path / "p", manifest_with(**{key: junk})), tmp_path / "out")
        assert message.startswith("error: ") and "Traceback" not in message, key


def test_existing_module_is_overwritten_only_with_replace(modules, package, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(modules / "heat", out / "heat")
    manifest = json.loads((out / "heat" / MANIFEST).read_text())
    (out / "heat" / MANIFEST).write_text(json.dumps({**manifest, "max_steps": 3}))
    assert install(package, out) == 2 and "is another module; use --replace" in capsys.readouterr().err
    assert read_module(out / "heat").max_steps == 3
    assert install(package, out, "--replace") == 0 and read_module(out / "heat").max_steps == 4
    assert not list(out.glob(".*"))


def test_directory_of_modules_is_installed_and_links_are_refused(modules, tmp_path, capsys):
    assert install(modules, tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"heat", "pick"}
    linked = tmp_path / "linked"
    shutil.copytree(modules / "heat", linked)
    (linked / "adapter_model.safetensors").unlink()
    (linked / "adapter_model.safetensors").symlink_to(modules / "heat" / "adapter_model.safetensors")
    assert "is a link or is missing" in refused(capsys, linked, tmp_path / "other")
    assert "no archive or directory" in refused(capsys, tmp_path / "nowhere", tmp_path / "other")
    assert "--sha256 is for one file" in refused(capsys, modules, tmp_path / "other", "--sha256", "0")


@pytest.mark.slow
def test_verify_flag_replays_the_evaluation(package, modules, tmp_path, capsys):
    assert install(package, tmp_path / "out", "--verify") == 0
    score = read_module(modules / "heat").scores["rl"]
    assert f"{score['successes']} of 4 won here on alfworld/seen/4[heat]" in capsys.readouterr().out
    scores = {"rl": {**score, "successes": 4 - score["successes"], "panel_hash": "0" * 16}}
    other = refused(capsys, rewritten(package, tmp_path / "a", manifest_with(scores=scores)), tmp_path / "b", "--verify")
    assert "hash 0000000000000000, 4 episodes), but here the panel is" in other
    none = refused(capsys, rewritten(package, tmp_path / "c", manifest_with(scores={})), tmp_path / "b", "--verify")
    assert "has no score of its own weights (rl-000002)" in none


def test_verdict_allows_only_for_chance():
    assert Verdict("p", 100, 90, 90).holds and str(Verdict("p", 100, 90, 90)).endswith("as its manifest says")
    near, far = Verdict("p", 100, 90, 85), Verdict("p", 100, 90, 60)
    assert near.holds and "its manifest says 90: within chance" in str(near)
    assert not far.holds and "is not reproduced" in str(far) and "[50.2%, 69.1%]" in str(far)


def test_base_licence_is_found_or_requested(modules, tmp_path, capsys):
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == OWN_LICENSE
    world, place = get_environment("alfworld"), tmp_path / "base"
    place.mkdir()
    (place / "config.json").write_text("{}")
    base = Base(str(place))
    with pytest.raises(TacitError, match="--base-license NAME"):
        find_license(base, world)
    assert find_license(base, world, "MIT") == "MIT"
    (place / "LICENSE").write_text("\n  Llama 3.2 Community License\nmore\n")
    assert find_license(base, world) == "Llama 3.2 Community License"
    (place / "README.md").write_text("---\ntags: [a]\nlicense: 'apache-2.0'\n---\nlicense: not this\n")
    assert find_license(base, world) == "apache-2.0"
    (place / "README.md").write_text("no front matter\nlicense: not this\n")
    assert find_license(base, world) == "Llama 3.2 Community License"
