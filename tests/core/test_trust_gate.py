"""Code named in a data file is imported only if the user typed its name or passed --trust-code."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import serving

import tacit
from tacit.cli.main import main
from tacit.config.recipe import read_document
from tacit.core.errors import TacitError
from tacit.core.platform import join_cluster
from tacit.core.trust import VARIABLE, add_flag, check_endpoint, flag_for_later, trust_code, trust_command_line, trust_names
from tacit.engines import get_engine
from tacit.engines.sharded.settings import ShardedSettings, check_servers
from tacit.methods import get_method
from tacit.worlds import get_environment


@pytest.fixture(autouse=True)
def untrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    file = tmp_path / f"evil_{tmp_path.name}.py"  # module names must be unique in a process
    file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom tacit.worlds.countdown import ENVIRONMENT\n")
    return file


NAMES = (
    "{evil}:ENVIRONMENT",
    "tacit.modules.work:WORK/../../{evil}:ENVIRONMENT",
    "tacit.modules.carrying:DRAFT_0123456789abcdef\n{evil}:ENVIRONMENT",
    "tacit.modules.carrying:/../../../../../../..{evil}:ENVIRONMENT",
    "countdown/../{evil}:ENVIRONMENT",
    "antigravity:ENVIRONMENT",
    "tacit.__main__:ENVIRONMENT",
    "os:system",
    ":ENVIRONMENT",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("find", [get_environment, get_method, get_engine])
def test_unregistered_names_are_not_imported(evil: Path, find, name: str) -> None:
    with pytest.raises(TacitError, match=r"would import .* from .*; pass --trust-code if you trust it"):
        find(name.format(evil=evil))
    assert not (evil.parent / "ran").exists()


def test_refusal_message_names_the_object_and_its_file(evil: Path, monkeypatch) -> None:
    monkeypatch.chdir(evil.parent)
    for name in (f"{evil.name}:ENVIRONMENT", f"{evil}:ENVIRONMENT"):
        with pytest.raises(TacitError) as caught:
            get_environment(name)
        assert str(caught.value) == (
            f"world {name!r} would import ENVIRONMENT from {evil}; pass --trust-code if you trust it "
            "(in Python: tacit.trust_code())."
        )


def test_only_names_typed_on_the_command_line_are_trusted(evil: Path, monkeypatch) -> None:
    monkeypatch.chdir(evil.parent)
    with trust_command_line(["train", f"--world={evil.name}:ENVIRONMENT=0.5,countdown=0.5"]):
        assert not flag_for_later()
        assert get_environment(f"{evil}:ENVIRONMENT").name == "countdown"
        assert flag_for_later() == " --trust-code", "the run that names it is evaluated with the flag"
        with pytest.raises(TacitError, match="would import OTHER"):
            get_environment(f"{evil}:OTHER")
    with pytest.raises(TacitError, match="would import"):
        get_environment(f"{evil}:ENVIRONMENT")


def test_flag_for_later_belongs_to_one_command(evil: Path, capsys) -> None:
    """Not to a later one of the same process."""
    assert main(["train", "--world", f"{evil}:ENVIRONMENT", "--iterations", "-1"]) == 2
    with trust_command_line(["train", "--trust-code"]):
        assert add_flag("`tacit eval RUN`") == "`tacit eval RUN --trust-code`"
    assert add_flag("`tacit eval RUN`") == "`tacit eval RUN`"
    capsys.readouterr()


def test_trust_is_passed_by_environment_until_the_command_ends() -> None:
    with trust_command_line(["eval", "run", "--trust-code"]):
        assert os.environ[VARIABLE] == "1"
    assert VARIABLE not in os.environ
    trust_names({"engine": {"name": "one:ONE"}, "policies": [{"engine": "two.py:TWO"}]})
    assert os.environ[VARIABLE].splitlines() == [f"{Path('two.py').resolve()}:TWO", "one:ONE"]
    trust_code()
    trust_names("three:THREE")
    assert os.environ[VARIABLE] == "1"


def test_world_named_in_a_settings_file_needs_trust_code(evil: Path, capsys) -> None:
    (evil.parent / "run.toml").write_text(f"world = '{evil}:ENVIRONMENT'\n")
    command = ["train", "--config", str(evil.parent / "run.toml"), "--out", str(evil.parent / "run"), "--iterations", "-1"]
    assert main(command) == 2
    assert f"would import ENVIRONMENT from {evil}; pass --trust-code" in capsys.readouterr().err
    assert not (evil.parent / "ran").exists()
    assert main([*command, "--trust-code"]) == 2
    assert "iterations" in capsys.readouterr().err and (evil.parent / "ran").exists()


def test_report_and_watch_reject_the_trust_code_flag(tmp_path: Path, capsys) -> None:
    for command in ("report", "watch"):
        assert main([command, str(tmp_path), "--trust-code"]) == 2
        assert "unknown flag --trust-code" in capsys.readouterr().err


DYNAMIC = {"import_module", "__import__", "spec_from_file_location", "exec_module", "exec", "eval", "run_path", "run_module"}
UNPICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "torch.distributed.checkpoint"}
ALLOWED = {
    "core/registry.py": "the registry: registered names, and others behind the gate",
    "__init__.py": "constants",
    "cli/main.py": "constants: the commands",
    "comparison/warm.py": "modules of this package",
    "core/platform.py": "a constant",
    "worlds/minihack/world.py": "classes of minihack, from a table",
    "sandbox/server.py": "functions that the program preloads, given on its own command line",
    "engines/sharded/launch.py": "constants: rank and server",
    "engines/sharded/messages.py": "pickles between a run's own processes, over an authenticated socket",
    "worlds/code/pytest_fork.py": "byte code of the packages under test, inside the sandbox",
    "modules/drafting/sandbox_process.py": "drafts, inside the sandbox",
}


@pytest.mark.slow
def test_only_listed_files_import_dynamically_or_unpickle() -> None:
    """A new file needs an entry in ALLOWED with its reason, or must use the registry."""
    root, found = Path(tacit.__file__).parent, set()
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords} if isinstance(node, ast.Call) else {}
            if (
                (called.rpartition(".")[2] in DYNAMIC and not called.endswith((".eval", ".exec")))
                or called == "torch.load"
                or keywords.get("allow_pickle") == "True"
                or keywords.get("trust_remote_code") == "True"
                or any(module in UNPICKLES for module in modules)
            ):
                found.add(file.relative_to(root).as_posix())
    assert found == set(ALLOWED)


SMALL_RUN = {
    "world": "countdown", "model": "tiny-0.5m", "method": {"name": "grpo"}, "schedule": {"iterations": 1},
    "sft": {"steps": 0}, "evaluation": {"untrained": False}, "engine": {"name": "local", "device": "cpu"},
}  # fmt: skip
ASKED_BY_RUNS: dict[str, dict[str, Any]] = {
    "helper": {
        "method": {"name": "opid", "analyzer": "model"},
        "policies": {"analyzer": {"model": "m", "engine": {"name": "chat", "url": "URL", "key_variable": "SECRET"}}},
    },
    "embedding": {
        "method": {"name": "complementary", "embedding": "endpoint", "embedding_url": "URL", "embedding_key": "SECRET"},
        "policies": {"extractor": {"model": "tiny-0.5m"}},
    },
    "engine": {"engine": {"name": "tinker", "url": "URL", "key_variable": "SECRET"}},
    "key": {"engine": {"name": "tinker", "key_variable": "SECRET"}},
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("where", ASKED_BY_RUNS)
def test_untrusted_run_cannot_send_keys_to_its_endpoint(tmp_path: Path, monkeypatch, capsys, where: str) -> None:
    if "tinker" in str(ASKED_BY_RUNS[where]):
        pytest.importorskip("tinker")
    monkeypatch.setenv("SECRET", "sk-secret")
    with serving(lambda body: (401, {"error": {"message": "no"}})) as server:
        text = json.dumps({**SMALL_RUN, **ASKED_BY_RUNS[where]}).replace('"URL"', json.dumps(server.url))
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "settings.json").write_text(text)
        for command in (["train", "--resume"], ["eval"], ["play", "--policy"]):
            assert main([*command, str(tmp_path / "run")]) == 2
            errors = capsys.readouterr().err
            assert errors.count("\n") == 1 and "Traceback" not in errors
            if command[0] == "train":
                assert (
                    "a file names the endpoint" in errors
                    and "$SECRET" in errors
                    and "pass --trust-code if you trust it" in errors
                )
        assert main(["train", "--config", str(tmp_path / "run" / "settings.json"), "--out", str(tmp_path / "new")]) == 2
        assert "a file names the endpoint" in capsys.readouterr().err, "a run's settings are data wherever they are read"
        assert main(["report", str(tmp_path / "run")]) == 0
        assert not server.keys
        if where in ("helper", "embedding"):
            assert main(["train", "--resume", str(tmp_path / "run"), "--trust-code"]) != 0
            assert set(server.keys) == {"Bearer sk-secret"}


def test_endpoint_named_by_the_user_is_trusted(tmp_path: Path) -> None:
    url = "https://api.example.org/v1"
    check_endpoint("http://localhost:8000/v1", "OPENAI_API_KEY")
    for trusted in (["eval", "run", f"--engine.url={url}/"], ["eval", "run", "--engine.url", url], ["eval", "--trust-code"]):
        with pytest.raises(TacitError, match="a file names the endpoint"):
            check_endpoint(url, "OPENAI_API_KEY")
        with trust_command_line(trusted):
            check_endpoint(url, "OPENAI_API_KEY")
            assert flag_for_later()
    (tmp_path / "own.toml").write_text(f'policies.judge = {{ model = "m", engine = {{ name = "chat", url = "{url}" }} }}')
    with trust_command_line(["train", "--config", str(tmp_path / "own.toml")]):
        read_document(tmp_path / "own.toml")
        check_endpoint(url, "OPENAI_API_KEY")
        with pytest.raises(TacitError, match=r"a file names the endpoint https://api\.example\.org\.evil/v1"):
            check_endpoint("https://api.example.org.evil/v1", "OPENAI_API_KEY")


def _join(address: str) -> None:
    join_cluster(address, "--workers-at", 2)


UNSAFE: dict[str, tuple[Callable[[], Any], list[str], str]] = {
    "isolation": (
        lambda: get_environment("code+tests=hidden+sandbox=none"),
        ["--world code --sandbox none", "--world code+sandbox=none --tests hidden", "--sandbox=none"],
        r"'code\+tests=hidden\+sandbox=none', which would run commands without isolation",
    ),
    "interpreter": (
        lambda: check_servers(ShardedSettings(servers=1, server_python="/no/a-b")),
        ["--engine.server-python /no/a-b", "--policies.judge.engine.server-python=/no/a-b"],
        r"'/no/a-b', which would be run",
    ),
    "cluster": (
        lambda: _join("127.0.0.1:1"),
        ["--engine.address 127.0.0.1:1", "--workers-at=127.0.0.1:1"],
        r"the Ray cluster at '127\.0\.0\.1:1'",
    ),
}


@pytest.mark.parametrize("setting", UNSAFE)
def test_unsafe_settings_must_be_typed_on_the_command_line(setting: str) -> None:
    use, typed, danger = UNSAFE[setting]
    refused = rf"a file names .*{danger}.*; name it on the command line \(--.*\), or pass --trust-code"
    for words in ("eval sandbox=none", "eval run --engine.address auto --sandbox isolated --engine.server-python /no/a"):
        with trust_command_line(words.split()), pytest.raises(TacitError, match=refused):
            use()
    for words in (*typed, "--trust-code"):
        with trust_command_line(["train", *words.split()]):
            try:
                use()
            except TacitError as error:
                assert "--trust-code" not in str(error)
            assert flag_for_later() == " --trust-code"
    trust_names({"world": {"sandbox": "none"}, "engine": {"server_python": "/no/a-b", "address": "127.0.0.1:1"}})
    try:
        use()
    except TacitError as error:
        assert "--trust-code" not in str(error)


def test_suggested_commands_include_trust_code_for_custom_code(evil: Path, capsys) -> None:
    run = evil.parent / "run"
    run.mkdir()
    (run / "settings.json").write_text(json.dumps({**SMALL_RUN, "world": f"{evil}:ENVIRONMENT"}))
    assert main(["eval", str(run), "--trust-code"]) == 2
    assert f"`tacit train --resume {run} --trust-code`" in capsys.readouterr().err
    assert main(["report", str(run)]) == 0
    assert f"tacit train --resume {run} --trust-code" in (run / "report.html").read_text()
    (run / "settings.json").write_text(json.dumps(SMALL_RUN))
    assert main(["eval", str(run)]) == 2
    assert f"`tacit train --resume {run}`" in capsys.readouterr().err
