"""The `tacit` command: fast help, clear errors, lists."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import tacit
from tacit.cli import listing, prepare
from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.methods import METHODS

HERE = str(Path(__file__).parent)
IMITATE = ["train", "--world", "countdown", "--model", "tiny", "--sft.steps", "2"]
HEAVY = ("torch", "transformers", "peft", "tokenizers")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["train", "--help"],
        ["train", "--method", "ppo", "--help"],
        ["eval", "--help"],
        ["play", "--help"],
        ["list"],
        ["train", "--world", "countdown", "--group-size", "1"],
        ["train", "--world", "countdown", "--model", "nowhere"],
        ["eval", "tiny", "--world", "countdown", "--split", "nowhere"],
    ],
)
def test_help_and_errors_import_no_heavy_modules(argv):
    done = python(
        f"import sys; from tacit.cli.main import main; main({argv!r}); print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


@pytest.mark.parametrize("command", ["train", "eval", "play", "calibrate", "modules train"])
def test_method_flags_do_not_collide_with_command_flags(command, capsys):
    for method in METHODS:
        assert main([*command.split(), "--method", method, "--help"]) == 0
        assert f"method {method}" in capsys.readouterr().out


def test_help_shows_fields_of_the_named_method(capsys):
    assert main(["train", "--method", "ppo", "--help"]) == 0
    ppo = " ".join(capsys.readouterr().out.split())
    assert "--lam NUMBER λ of the advantage estimate; 1 is return minus value (default: 0.95)" in ppo
    assert "--sft.steps INT optimizer steps; 0 skips the stage, unless `epochs` is set (default: 0)" in ppo
    assert "package.module:OBJECT or path/to/file.py:OBJECT" in ppo
    assert main(["train", "--help"]) == 0
    assert "--lam" not in capsys.readouterr().out


def test_help_shows_basic_settings_and_help_all_shows_all(capsys):
    def flags(*words: str) -> list[str]:
        assert main(["train", *words]) == 0
        return re.findall(r"^  (--[\w.-]+)", capsys.readouterr().out, re.M)

    basic, every = flags("--help"), flags("--help", "all")
    assert 25 <= len(basic) <= 36 and set(basic) < set(every) and len(every) > 90
    assert {"--world", "--method", "--model", "--out", "--seed", "--resume", "--lr", "--sft.steps"} <= set(basic)


def test_top_level_help_names_the_commands(capsys):
    for argv in ([], ["--help"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert all(command in out for command in ("train", "eval", "play", "list", "prepare"))
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("tacit 0.")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "error: unknown command 'trian' of `tacit`. Did you mean 'train'?"),
        (["train"], "error: no world."),
        (["train", "--world", "countdwon"], "error: unknown world 'countdwon'. Did you mean 'countdown'?"),
        (["train", "--method", "dappo"], "error: unknown method 'dappo'. Did you mean 'dapo'?"),
        (["train", "--world", "countdown", "--engine.servers", "2"], "error: unknown flag --engine.servers. It belongs to"),
        (["train", "--world", "countdown", "--lam", "1"], "error: unknown flag --lam. It belongs to ppo: add --method ppo."),
        (["train", "--world", "countdown", "--gruops", "1"], "error: unknown flag --gruops. Did you mean --groups?"),
        (["train", "--world", "countdown", "--learning_rate", "1"], "error: unknown flag --learning-rate. Did you mean --lr?"),
        (["train", "--resume", "nowhere"], "error: nowhere is not a run directory: it does not exist."),
        (["train", "--resume", str(Path(__file__).parent)], f"error: {Path(__file__).parent} is not a run directory: it has"),
        (["train", "--resume", __file__], f"error: {__file__} is not a run directory: it is a file."),
        (["train", "countdown"], "error: unexpected argument 'countdown'. See"),
        (["eval", "runs/nowhere"], "error: 'runs/nowhere' is not a run directory: it does not exist. A model"),
        (["eval", "tiny"], "error: 'tiny' needs a world: add --world"),
        (["eval", "expert"], "error: 'expert' needs a world: add --world"),
        (["eval"], "error: the following arguments are required: TARGET"),
        (["eval", "expert", "--panel", "countdown/tset/8"], "error: unknown panel 'countdown/tset/8'. Did you mean"),
        (["eval", "expert", "--panel", "test"], "error: --panel 'test' is not a panel"),
        (["eval", "tiny", "--world", "countdown", "--checkpoint", "best"], "error: --checkpoint best is for runs"),
        (["play", "--policy", "expert", "--world", "countdown", "--task", "-1"], "error: --task -1 must not be negative"),
        (["list", "wrolds"], "error: unknown list 'wrolds'. Did you mean 'worlds'?"),
        (["prepare", "smolm2", "x"], "error: unknown command 'smolm2' of `tacit prepare`. Did you mean 'smollm2'?"),
        (["prepare", "smollm2", "x", "--gguf", "nowhere.gguf"], "error: --gguf nowhere.gguf: the file does not exist."),
        (["prepare", "code", __file__], f"error: DEST {__file__} is a file, not a directory"),
        (["prepare", "code", f"{__file__}/new"], f"error: cannot make the directory {__file__}/new: {__file__} is a file."),
        (["train", "--world", "countdown", "--seed", "-1"], "error: seed = -1 must be between 0 and 2^63"),
        (["train", "--world", "countdown", "--seed", str(2**63)], f"error: seed = {2**63} must be between 0 and 2^63"),
        (["train", "--world", "errands", "--tests", "shown"], "error: unknown option 'tests' of world 'errands'. Known: none"),
        ([*IMITATE, "--sft.from", __file__], f"error: there is no recorded episode in {__file__} (line 1: "),
        (["eval", "expert", "--world", "countdown", "--json", f"{__file__}/x"], f"error: --json {__file__} is a file"),
        (["eval", "expert", "--world", "countdown", "--json", HERE], f"error: --json {HERE} is a directory; name a file."),
        (["eval", "tiny", "--world", "countdown", "--panel", "nowhere.jsonl"], "error: cannot read the panel nowhere.jsonl"),
        (["calibrate", "tiny", "--world", "countdown", "--out", f"{__file__}/x"], f"error: --out {__file__} is a file"),
        (["inspect", "credit", "runs/any", "--json", f"{__file__}/x"], f"error: --json {__file__} is a file"),
    ],
)  # fmt: skip
def test_error_is_one_line_with_exit_code_2(argv, message, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message) and captured.err.count("\n") == 1 and "Traceback" not in captured.err
    assert captured.out == ""


def test_error_is_red_in_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    main(["trian"])
    assert sys.stderr.getvalue().startswith("\033[31merror:\033[0m unknown command")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", Terminal())
    main(["trian"])
    assert sys.stderr.getvalue().startswith("error: unknown command")


def test_debug_mode_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("TACIT_DEBUG", "1")
    with pytest.raises(TacitError):
        main(["trian"])


def test_interrupt_prints_no_traceback(monkeypatch, capsys):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "run", interrupted)
    assert main(["list"]) == 130
    assert "stopped" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["tacit", "tacit.cli.main"])
def test_runs_as_a_module(module):
    ran = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"tacit {tacit.__version__}\n" and not ran.stderr


def test_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m tacit.cli.main list | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.startswith("Worlds")


def test_list_worlds_methods_models_and_panels(capsys):
    assert main(["list", "worlds", "--world", "countdown"]) == 0
    worlds = " ".join(capsys.readouterr().out.split())
    assert (
        "countdown" in worlds
        and "yes 30 Countdown-Stepwise:" in worlds
        and "26 solver train, test, hard three_numbers" in worlds
    )
    assert main(["list", "methods"]) == 0
    methods = capsys.readouterr().out
    assert all(name in methods for name in METHODS)
    assert "REINFORCE with a leave-one-out baseline." in methods
    assert main(["list", "models"]) == 0
    models = capsys.readouterr().out
    assert "tiny-4m" in models and "1.0M parameters" in models and "tacit prepare smollm2" in models and "owner/name" in models
    assert main(["list", "panels", "--world", "countdown"]) == 0
    from tacit.evaluation.panels import Panel
    from tacit.worlds.countdown import ENVIRONMENT

    panels = capsys.readouterr().out
    assert "countdown/test/128" in panels and Panel.of(ENVIRONMENT, "test", 128).hash in panels


def test_world_descriptions_take_at_most_two_lines(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["list"]) == 0
    worlds = capsys.readouterr().out.split("Methods")[0].splitlines()[2:]
    names = [number for number, line in enumerate(worlds) if line[:1].strip()]
    assert len(names) > 10 and max(after - before for before, after in pairwise(names)) <= 2


def test_unavailable_world_does_not_hide_the_others(monkeypatch, capsys):
    monkeypatch.setitem(listing.WORLDS.builtin, "broken", "tacit.worlds.nowhere:ENVIRONMENT")
    assert main(["list", "worlds"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "broken" in out and "not available" in out and "countdown" in out


def test_prepare_calls_the_engine(monkeypatch, capsys, tmp_path):
    calls = []
    monkeypatch.setattr(prepare, "prepare_model", lambda packed, to, gguf, say: calls.append((packed.title, to, gguf)) or to)
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"")
    assert main(["prepare", "smollm2", str(tmp_path / "model"), "--gguf", str(gguf)]) == 0
    assert calls == [("SmolLM2-135M-Instruct", tmp_path / "model", gguf)]
    assert f"--model {tmp_path / 'model'} --world countdown" in capsys.readouterr().out, "it can be typed as it stands"


def test_help_does_not_change_the_environment():
    """In a new process, since importing the command line may not change it either."""
    code = (
        "import os; before = dict(os.environ); from tacit.cli.main import main; main(['--help']); assert os.environ == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_missing_run_error_lists_existing_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "settings.json").write_text("{}")
    assert main(["eval", "runs/three"]) == 2
    assert capsys.readouterr().err.endswith("(see `tacit list worlds`). Runs here: runs/one, runs/two.\n")
    assert main(["eval", "runs"]) == 2
    assert "'runs' is not a run directory: it contains runs: runs/one, runs/two; name one of them." in capsys.readouterr().err
