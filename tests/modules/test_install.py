"""A module as one file, and somebody else's among one's own: what is checked, and what no sender can do."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.modules import read_module
from tacit.modules.archive import PACKAGE, pack
from tacit.modules.module import MANIFEST, OWN_LICENSE, Base, find_license
from tacit.modules.verify import Verdict
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
    """The package after `change` has had its entries: name -> bytes."""
    with zipfile.ZipFile(package) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file


def relisted(entries: dict[str, bytes]) -> None:
    """What a careful forger does: the list says what is there."""
    told = json.loads(entries[PACKAGE])
    told["files"] = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in entries.items()
        if name != PACKAGE
    }
    entries[PACKAGE] = json.dumps(told).encode()


def manifest_with(**changes: Any) -> Any:
    def change(entries: dict[str, bytes]) -> None:
        entries[MANIFEST] = json.dumps({**json.loads(entries[MANIFEST]), **changes}).encode()
        relisted(entries)

    return change


def test_a_packed_module_comes_out_as_it_went_in(modules, package, tmp_path, capsys):
    out = tmp_path / "mine"
    assert install(package, out) == 0
    assert f"heat: installed in {out / 'heat'}, for heat" in capsys.readouterr().out
    before, after = read_module(modules / "heat"), read_module(out / "heat")
    assert after.to_json() == before.to_json() and not after.find_damage()
    with zipfile.ZipFile(package) as archive:
        told, card = json.loads(archive.read(PACKAGE)), archive.read("README.md").decode()
    score = before.scores["rl"]
    assert told["scores"]["rl"]["panel_hash"] == score["panel_hash"] in card and "alfworld/seen/4[heat]" in card
    assert (
        told["base"] == {"model": "tiny", "fingerprint": before.fingerprint, "licence": OWN_LICENSE}
        and before.fingerprint in card
    )
    assert f"license: {OWN_LICENSE}" in card and (out / "heat" / "README.md").read_text() == card
    assert install(package, out) == 0 and "already in" in capsys.readouterr().out
    assert main(["modules", "verify", str(out)]) == 0 and main(["modules", "list", str(out)]) == 0


def test_the_same_module_gives_the_same_bytes_and_an_installed_one_packs_again(modules, package, tmp_path, capsys):
    install(package, tmp_path / "mine")
    again = tmp_path / "again.tacit"
    assert main(["modules", "pack", str(tmp_path / "mine" / "heat"), str(again)]) == 0
    assert again.read_bytes() == package.read_bytes()
    assert hashlib.sha256(again.read_bytes()).hexdigest() in capsys.readouterr().out
    assert main(["modules", "pack", str(modules / "heat"), str(again)]) == 2
    assert "--replace writes over it" in capsys.readouterr().err
    assert main(["modules", "pack", str(modules), str(tmp_path / "x")]) == 2 and "is no module" in capsys.readouterr().err


def test_a_changed_file_is_refused_whoever_changed_the_list(package, tmp_path, capsys):
    def flip(entries):
        data = bytearray(entries["adapter_model.safetensors"])
        data[-1] ^= 1
        entries["adapter_model.safetensors"] = bytes(data)

    def flip_and_list(entries):
        flip(entries)
        relisted(entries)

    out = tmp_path / "out"
    assert "'adapter_model.safetensors' in" in refused(capsys, rewritten(package, tmp_path / "a", flip), out)
    assert "is damaged (sha256" in refused(capsys, rewritten(package, tmp_path / "b", flip_and_list), out)
    assert "do not match its package.json" in refused(
        capsys, rewritten(package, tmp_path / "c", lambda e: e.pop("README.md")), out
    )
    assert "do not match its package.json" in refused(
        capsys, rewritten(package, tmp_path / "d", lambda e: e.update({"x.json": b""})), out
    )
    (tmp_path / "half").write_bytes(package.read_bytes()[:5000])
    assert "is not a module archive, or is damaged" in refused(capsys, tmp_path / "half", out)
    told = "0" * 64
    assert f"not {told}" in refused(capsys, package, out, "--sha256", told)


@pytest.mark.parametrize(
    "name", ["../evil.json", "/tmp/evil.json", "a/b.json", "..", ".hidden.json", "C:\\evil.json", "x\n.json"]
)
def test_no_name_leads_out_of_the_package(package, tmp_path, capsys, name):
    def escape(entries):
        entries[name] = b"{}"
        relisted(entries)

    assert "unsafe name" in refused(capsys, rewritten(package, tmp_path / "p", escape), tmp_path / "out")
    assert "cannot be used as a directory name" in refused(
        capsys, rewritten(package, tmp_path / "q", manifest_with(skill=name.removesuffix(".json") + "/x")), tmp_path / "out"
    )
    files = {name: "0" * 64}
    assert "unsafe name" in refused(capsys, rewritten(package, tmp_path / "r", manifest_with(files=files)), tmp_path / "out")
    assert not list(tmp_path.parent.rglob("evil*")) and not Path("/tmp/evil.json").exists()


def test_links_code_compression_twins_and_giants_are_refused(package, tmp_path, capsys):
    out = tmp_path / "out"

    def crafted(name: str, *entries: tuple[zipfile.ZipInfo, bytes]) -> Path:
        shutil.copyfile(package, tmp_path / name)
        with zipfile.ZipFile(tmp_path / name, "a") as archive:
            for entry, data in entries:
                archive.writestr(entry, data)
        return tmp_path / name

    link = zipfile.ZipInfo("link.json")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "contains the link" in refused(capsys, crafted("link", (link, b"/etc/passwd")), out)
    packed = zipfile.ZipInfo("bomb.json")
    packed.compress_type = zipfile.ZIP_DEFLATED
    assert "is compressed or encrypted" in refused(capsys, crafted("bomb", (packed, b"0" * 10_000_000)), out)
    with pytest.warns(UserWarning, match="Duplicate name"):
        twin = crafted("twin", (zipfile.ZipInfo(MANIFEST), b"{}"))
    assert "twice" in refused(capsys, twin, out)
    assert "may only contain tensors and text" in refused(capsys, crafted("code", (zipfile.ZipInfo("world.py"), b"x")), out)
    assert "may only contain tensors and text" in refused(capsys, crafted("pickle", (zipfile.ZipInfo("model.bin"), b"x")), out)
    giant = crafted("giant", (zipfile.ZipInfo("big.json"), b"0" * 2_000_000))
    assert "more than the limit of 1,000,000; raise it with --max-mb" in refused(capsys, giant, out, "--max-mb", "1")


def test_what_does_not_fit_this_machine_is_refused(package, modules, tmp_path, capsys):
    out, manifest = tmp_path / "out", json.loads((modules / "heat" / MANIFEST).read_text())
    other = {**manifest["base"], "fingerprint": "0" * 64}
    told = refused(capsys, rewritten(package, tmp_path / "a", manifest_with(base=other)), out)
    assert f"with fingerprint {'0' * 64}, but base 'tiny' has {manifest['base']['fingerprint']}" in told
    assert "tacit-install-" not in told, "where it was unpacked is nobody's business"
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
def test_a_manifest_may_hold_anything_and_is_still_only_refused(package, tmp_path, capsys, junk):
    for key in ("world", "skill", "families", "tracker", "context", "weights", "base", "sampling", "scores", "run", "files"):
        if (key, junk) in (("tracker", None), ("skill", "text"), ("scores", [])):
            continue  # which could be meant
        told = refused(capsys, rewritten(package, tmp_path / "p", manifest_with(**{key: junk})), tmp_path / "out")
        assert told.startswith("error: ") and "Traceback" not in told, key


def test_another_module_of_the_skill_is_not_written_over_unasked(modules, package, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(modules / "heat", out / "heat")
    manifest = json.loads((out / "heat" / MANIFEST).read_text())
    (out / "heat" / MANIFEST).write_text(json.dumps({**manifest, "max_steps": 3}))
    assert install(package, out) == 2 and "is another module; use --replace" in capsys.readouterr().err
    assert read_module(out / "heat").max_steps == 3
    assert install(package, out, "--replace") == 0 and read_module(out / "heat").max_steps == 4
    assert not list(out.glob(".*"))


def test_a_directory_of_modules_is_installed_and_links_in_it_are_not_followed(modules, tmp_path, capsys):
    assert install(modules, tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"heat", "pick"}
    linked = tmp_path / "linked"
    shutil.copytree(modules / "heat", linked)
    (linked / "adapter_model.safetensors").unlink()
    (linked / "adapter_model.safetensors").symlink_to(modules / "heat" / "adapter_model.safetensors")
    assert "is a link or is missing" in refused(capsys, linked, tmp_path / "other")
    assert "no archive or directory" in refused(capsys, tmp_path / "nowhere", tmp_path / "other")
    assert "--sha256 is for one file" in refused(capsys, modules, tmp_path / "other", "--sha256", "0")


def test_the_score_is_played_again_on_request(package, modules, tmp_path, capsys):
    assert install(package, tmp_path / "out", "--verify") == 0
    score = read_module(modules / "heat").scores["rl"]
    assert f"{score['successes']} of 4 won here on alfworld/seen/4[heat]" in capsys.readouterr().out
    scores = {"rl": {**score, "successes": 4 - score["successes"], "panel_hash": "0" * 16}}
    other = refused(capsys, rewritten(package, tmp_path / "a", manifest_with(scores=scores)), tmp_path / "b", "--verify")
    assert "hash 0000000000000000, 4 episodes), but here the panel is" in other
    none = refused(capsys, rewritten(package, tmp_path / "c", manifest_with(scores={})), tmp_path / "b", "--verify")
    assert "has no score of its own weights (rl-000002)" in none


def test_a_verdict_allows_for_chance_and_no_more():
    assert Verdict("p", 100, 90, 90).holds and str(Verdict("p", 100, 90, 90)).endswith("as its manifest says")
    near, far = Verdict("p", 100, 90, 85), Verdict("p", 100, 90, 60)
    assert near.holds and "its manifest says 90: within chance" in str(near)
    assert not far.holds and "does not hold" in str(far) and "[50.2%, 69.1%]" in str(far)


def test_the_licence_of_the_base_is_found_or_asked_for(modules, tmp_path, capsys):
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == OWN_LICENSE
    world, place = get_environment("alfworld"), tmp_path / "base"
    place.mkdir()
    (place / "config.json").write_text("{}")
    base = Base(str(place))
    with pytest.raises(TacitError, match="--base-licence NAME"):
        find_license(base, world)
    assert find_license(base, world, "MIT") == "MIT"
    (place / "LICENSE").write_text("\n  Llama 3.2 Community License\nmore\n")
    assert find_license(base, world) == "Llama 3.2 Community License"
    (place / "README.md").write_text("---\ntags: [a]\nlicense: 'apache-2.0'\n---\nlicense: not this\n")
    assert find_license(base, world) == "apache-2.0"
    (place / "README.md").write_text("no front matter\nlicense: not this\n")
    assert find_license(base, world) == "Llama 3.2 Community License"


@pytest.fixture
def shelf(package, modules, tmp_path) -> Iterator[str]:
    """A server of files on this machine."""
    place = tmp_path / "served"
    place.mkdir()
    shutil.copyfile(package, place / "heat.tacit")

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *words: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/short":
                self.send_response(200)
                self.send_header("content-length", "100000")
                self.end_headers()
                self.wfile.write(b"PK")
            elif self.path == "/local":
                self.send_response(302)
                self.send_header("location", f"file://{place / 'heat.tacit'}")
                self.end_headers()
            else:
                super().do_GET()

    yield from serving(functools.partial(Handler, directory=place))


def serving(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_from_an_address(shelf, package, tmp_path, capsys):
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    assert install(f"{shelf}/heat.tacit", tmp_path / "out", "--sha256", digest) == 0
    assert not read_module(tmp_path / "out" / "heat").find_damage()
    out = tmp_path / "other"
    assert "404" in refused(capsys, f"{shelf}/nothing", out)
    assert "ended after 2 of 100000 bytes" in refused(capsys, f"{shelf}/short", out)
    assert "cannot fetch" in refused(capsys, f"{shelf}/local", out), "a server does not send one into one's own files"
    assert "starts with https://" in refused(capsys, f"file://{package}", out)
    assert "cannot fetch http://127.0.0.1:1/x" in refused(capsys, "http://127.0.0.1:1/x", out)


@pytest.fixture
def hub(package, modules) -> Iterator[str]:
    """As much of the Hugging Face hub as its client asks of it: what a repository holds, and each file."""
    folder = {f"skills/heat/{file.name}": file.read_bytes() for file in (modules / "heat").iterdir()}
    repositories = {
        "me/packed": {"README.md": b"x", "heat.tacit": package.read_bytes()},
        "me/plain": folder,
        "me/two": {**folder, "pick.tacit": package.read_bytes()},
        "me/empty": {"README.md": b"x"},
        "me/evil": {"module.json": json.dumps({"files": {"../../evil.json": "0"}}).encode(), "../../evil.json": b"{}"},
    }
    commit = "1" * 40

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words: Any) -> None:
            pass

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/")
            if path.startswith("api/models/"):
                name = "/".join(path.split("/")[2:4])
                if name not in repositories:
                    return self.answer(404, b"{}", x_error_code="RepoNotFound")
                siblings = [{"rfilename": file, "size": len(data)} for file, data in repositories[name].items()]
                told = {"id": name, "sha": commit, "siblings": siblings}
                return self.answer(200, json.dumps(told).encode(), content_type="application/json")
            owner, name, _, revision, *rest = path.split("/")
            data = repositories[f"{owner}/{name}"]["/".join(rest)]
            assert revision == commit, "pinned"
            self.answer(200, data, etag=f'"{hashlib.sha256(data).hexdigest()}"', x_repo_commit=commit)

        do_HEAD = do_GET

    yield from serving(Handler)


def test_from_a_repository_of_the_hub(hub, tmp_path):
    """In a process of its own: its client reads the hub's address when it is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", "COLUMNS": "400"}
    out = tmp_path / "out"
    script = f"""
import sys
from tacit.cli.main import main
for name in {["packed", "plain", "two", "two:pick.tacit", "empty", "evil", "nobody"]!r}:
    print(name, flush=True)
    main(["modules", "install", f"hf:me/{{name}}", "--out", {str(out)!r} + "/" + name.replace(":", "-")])
    sys.stderr.flush()
"""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout
    assert "heat: installed in" in ran.stdout.partition("two")[0], ran.stdout
    assert {path.name for path in out.iterdir()} == {"packed", "plain", "two-pick.tacit"}, ran.stdout
    for place in out.iterdir():
        assert not read_module(place / "heat").find_damage()
    assert "Choose one of hf:me/two:pick.tacit, hf:me/two:skills/heat." in ran.stdout
    assert "hf:me/empty is not a module. The repository has none." in ran.stdout and "unsafe name" in ran.stdout
    assert "cannot fetch hf:me/nobody" in ran.stdout and "Traceback" not in ran.stdout
    assert not list(tmp_path.rglob("evil.json"))
