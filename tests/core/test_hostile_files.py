"""Untrusted files that are too large, too deeply nested or oddly named give one-line errors."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tacit.cli.main import main
from tacit.companions.answers import Answer, AnswerCache
from tacit.config.portable import read_manifest
from tacit.core.errors import TacitError
from tacit.core.types import Completion, Task
from tacit.engines.models.bases import (
    check_adapter,
    check_sizes,
    check_templates,
    check_tokenizer,
    fingerprint,
    may_backtrack,
)
from tacit.engines.models.tiny import TinySettings
from tacit.evaluation.evaluate import TurnCache
from tacit.modules.drafting.sandbox_process import findings
from tacit.modules.module import find_modules
from tacit.report.run_files import read_episodes
from tacit.runs import files
from tacit.runs.alarms import read_alarms
from tacit.runs.directory import Checkpoint, Metrics, Run, read_metrics
from tacit.runs.files import write_text
from tacit.runs.trajectories import list_recordings, read_trajectories, write_records

SETTINGS = {"world": "countdown", "method": {"name": "grpo"}, "model": "tiny", "seed": 0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    (path / "trajectories").mkdir(parents=True)
    (path / "settings.json").write_text(json.dumps(SETTINGS))
    return path


ODD = ("plain", "rl-", "-1", "rl-²", "rl-1e9", "rl--1", "a-" + "9" * 200, "rl-\n1", b"\xff\xfe-000001", "x" * 230)


@pytest.mark.parametrize("name", ODD)
def test_recordings_with_odd_names_are_skipped(run: Path, name: str | bytes, capsys) -> None:
    text = os.fsdecode(name) if isinstance(name, bytes) else name
    with gzip.open(run / "trajectories" / f"{text}.jsonl.gz", "wt") as file:
        file.write("{}\n")
    assert not list_recordings(run, "rl")
    assert main(["report", str(run)]) == 0
    (run / "evaluations").mkdir()
    (run / "evaluations" / f"{text}.json").write_text('{"panel": "\\ud800"}')
    assert main(["report", str(run)]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_gzip_bomb_is_refused(run: Path, monkeypatch) -> None:
    monkeypatch.setattr(files, "MAX_LINE", 1 << 15)
    monkeypatch.setattr(files, "MAX_EXPANDED", 1 << 17)
    one, many = (run / "trajectories" / f"rl-00000{n}.jsonl.gz" for n in (1, 2))
    one.write_bytes(gzip.compress(b'"' + b"a" * (1 << 16)))
    many.write_bytes(gzip.compress(b"{}\n" * (1 << 16)))
    for file in (one, many):
        assert file.stat().st_size < 1 << 12
        notices: list[str] = []
        read_episodes(run, file, notices)
        assert "longer than" in notices[0], notices
        with pytest.raises(TacitError, match=r"cannot read the recorded episodes .* longer than"):
            read_trajectories(file, ())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "summary.json",
        "alarms.jsonl",
        "trajectories/rl-000001.jsonl.gz",
        "evaluations/rl-1.json",
        "checkpoints/rl-000001/state.json",
        "checkpoints/rl-000001/policy/training/default.safetensors",
    ],
)
def test_named_pipe_or_device_in_a_run_does_not_block(run: Path, name: str, capsys) -> None:
    file = run / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    assert main(["report", str(run)]) == 0 and main(["eval", str(run)]) == 2
    file.unlink()
    file.symlink_to("/dev/zero")
    assert main(["report", str(run)]) == 0
    assert "Traceback" not in capsys.readouterr().err


CHECKS: tuple[tuple[Callable[[Path], object], str], ...] = (
    (lambda place: find_modules(place.parent), "module.json"),
    (check_adapter, "adapter_config.json"),
    (check_adapter, "adapter_model.safetensors"),
    (check_sizes, "config.json"),
    (check_sizes, "other.safetensors"),
    (fingerprint, "config.json"),
    (check_tokenizer, "tokenizer.json"),
    (check_templates, "chat_template.jinja"),
    (check_templates, "tokenizer_config.json"),
    (read_alarms, "alarms.jsonl"),
    (lambda place: read_metrics(place / "metrics.jsonl"), "metrics.jsonl"),
    (lambda place: Checkpoint(place, "rl", 1).state(), "state.json"),
    (lambda place: Checkpoint(place, "rl", 1).check(), "anything"),
    (read_manifest, "pack.json"),
)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("number", range(len(CHECKS)))
def test_pipe_device_or_deep_json_error_names_the_file(tmp_path: Path, number: int) -> None:
    check, name = CHECKS[number]
    place = make_model(tmp_path / "m")
    shutil.copy(place / "model.safetensors", place / "adapter_model.safetensors")
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (place / name).unlink(missing_ok=True)
        make(place / name)
        with pytest.raises(TacitError, match=re.escape(name)):
            check(place)
    (place / name).unlink()
    for text in ("[" * 100_000, '{"a":' * 100_000, f'{{"a": {"9" * 5000}}}'):
        (place / name).write_text(text)
        with suppress(TacitError):
            check(place)


@pytest.mark.parametrize("line", ["1", "{}", "[]", "null", '{"task": []}', '{"task": "t"}', '{"task": "t", "turns": 3}'])
def test_malformed_records_are_refused_or_skipped(run: Path, line: str) -> None:
    file = run / "trajectories" / "rl-000001.jsonl.gz"
    file.write_bytes(gzip.compress(line.encode()))
    with pytest.raises(TacitError, match="cannot read the recorded episodes"):
        read_trajectories(file, [Task("countdown", "t", "", "", 0, "")])
    (run / "metrics.jsonl").write_text(f'{line}\n{{"stage": "rl", "step": 1}}\n{{"stage"')
    (run / "alarms.jsonl").write_text(f'{line}\n{{"name": "valid", "step": 1, "message": "m"}}\n')
    assert len(read_metrics(run / "metrics.jsonl")) == len(read_alarms(run)) == 1


WRITES: dict[str, Callable[[Path], object]] = {
    "a.turns": lambda run: TurnCache(run / "a.turns").add({"k": Completion(np.zeros(1), np.zeros(1), "$(evil)", "stop")}),
    "answers.jsonl": lambda run: AnswerCache(run).add("k", Answer("$(evil)", 1, 1)),
    ".x.json.PID.tmp": lambda run: write_text(run / "x.json", "{}"),
    ".rl-000001.jsonl.gz.tmp": lambda run: write_records(run / "rl-000001.jsonl.gz", [{}]),
    "metrics.jsonl": lambda run: Metrics(run).write("rl", 1, {}),
}


@pytest.mark.parametrize("name", WRITES)
def test_run_files_are_not_written_through_symlinks(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "own").write_text("precious\n")
    (run / name.replace("PID", str(os.getpid()))).symlink_to(tmp_path / "own")
    with pytest.raises(TacitError, match=r"cannot (write|save)"):
        WRITES[name](run)
    (run / ".lock").symlink_to(tmp_path / "own")
    Run(run).close()
    assert (tmp_path / "own").read_text() == "precious\n"


def test_deeply_nested_files_give_one_line_errors(run: Path, tmp_path: Path, capsys) -> None:
    deep = tmp_path / "deep.toml"
    deep.write_text(f"world = {'[' * 5000}{']' * 5000}\n")
    assert main(["train", "--config", str(deep)]) == 2
    (run / "trajectories" / "rl-000001.jsonl.gz").write_bytes(gzip.compress(b"[" * 100_000 + b"\n"))
    (run / "versions.json").write_text("[" * 100_000)
    assert main(["report", str(run)]) == 0
    (run / "settings.json").write_text('{"a":' * 100_000)
    for command in (["report"], ["eval"], ["train", "--resume"], ["play", "--policy"]):
        assert main([*command, str(run)]) == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == len(errors.splitlines()) == 5, errors


def make_model(path: Path, **config: object) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}}).encode()
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(128))
    sizes = {"num_hidden_layers": 1, "vocab_size": 8, "hidden_size": 4, "intermediate_size": 4}
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes, **config}))
    (path / "tokenizer.json").write_text("{}")
    return path


def test_damaged_weights_of_a_checkpoint_are_refused_before_they_are_loaded(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "rl-000002", "rl", 2)
    (checkpoint.policy).mkdir(parents=True)
    file = make_model(checkpoint.policy / "model") / "model.safetensors"
    checkpoint.check()
    whole = file.read_bytes()
    for damaged, reason in ((whole[:-1], r"is truncated: it has 201 of 202 bytes"), (bytes(64), "has no valid header")):
        file.write_bytes(damaged)
        with pytest.raises(TacitError, match=rf"rl-000002 is damaged: .*{reason}.*\. Delete it, then train again"):
            checkpoint.check()
    (tmp_path / "sft-000010").mkdir()
    with pytest.raises(TacitError, match=r"Delete it, then use another one \(--checkpoint sft-000010\)"):
        checkpoint.check()


def test_model_config_larger_than_its_weights_is_refused(tmp_path: Path, capsys) -> None:
    check_sizes(make_model(tmp_path / "m"))
    for claim in (
        {"num_hidden_layers": 10**7},
        {"vocab_size": 10**9},
        {"intermediate_size": 10**12},
        {"text_config": {"num_hidden_layers": 10**7}},
    ):
        with pytest.raises(TacitError, match="claims"):
            check_sizes(make_model(tmp_path / "m", **claim))
    command = [
        "train",
        "--world",
        "countdown",
        "--model",
        str(tmp_path / "m"),
        "--out",
        str(tmp_path / "out"),
        "--sft.steps",
        "1",
    ]
    assert main(command) == 2 and "claims 10000000 layers, but there are 1 tensors" in capsys.readouterr().err
    (tmp_path / "m" / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little"))
    with pytest.raises(TacitError, match="header of 1152921504606846984 bytes"):
        check_sizes(tmp_path / "m")


KNOWN = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}]*[\p{Ll}\p{Lm}]+(?i:'s|'t)?|\p{N}{1,3}|\s*[\r\n]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+",
)


def test_tokenizer_with_backtracking_regex_is_refused(tmp_path: Path) -> None:
    assert not any(map(may_backtrack, KNOWN))
    assert may_backtrack("[" * 300_000 + "]" * 300_000), "deep nesting must not take long"
    for pattern in (
        "(a+)+$",
        "(a|aa)*b",
        "(?:x{1,})+",
        "a*a*a*b",
        "(a{1,5000}){1,5000}",
        "x" * 3000,
    ):
        assert may_backtrack(pattern), pattern
        split = {"type": "Split", "pattern": {"Regex": pattern}}
        (tmp_path / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split]}}))
        with pytest.raises(TacitError, match=r"would run the regular expression .*; pass --trust-code if you trust it"):
            check_tokenizer(tmp_path)


@pytest.mark.slow
def test_model_with_custom_code_is_refused_without_prompting(tmp_path: Path) -> None:
    """transformers would ask on a terminal. Standard input here answers yes."""
    model = make_model(
        tmp_path / "m", model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    )
    (model / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (model / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["own.Tokenizer", null]}}')
    command = ["train", "--world", "countdown", "--model", str(model), "--out", str(tmp_path / "run"), "--sft.steps", "1"]
    script = f"from tacit.cli.main import main; raise SystemExit(main({command!r}))"
    ran = subprocess.run([sys.executable, "-c", script], input="y\ny\n", capture_output=True, text=True, timeout=300)
    assert ran.returncode == 2 and "Do you wish" not in ran.stdout + ran.stderr
    assert f"would import its own classes from {model}; pass --trust-code if you trust it" in ran.stderr, ran.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(30, "Read-only file system", "/x"), RuntimeError("can't start new thread")]
)
def test_system_limit_errors_are_one_line(monkeypatch, capsys, error: Exception) -> None:
    def fail(*words: object, **more: object) -> int:
        raise error

    monkeypatch.setattr("tacit.cli.main.dispatch", fail)
    assert main(["list"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert "out of memory" in errors or "cannot write /x: read-only disk" in errors


@pytest.mark.parametrize(
    "line",
    [
        '"{0.__globals__}".format(start)',
        '"{0.__class__}".format_map({})',
        '"{0[x]}".format([])',
        '"{:{0.__globals__}}".format(1, start)',
        "TEXT.format(start)",
        'str.format("{0.__globals__}", start)',
        'list(map(str.format, ["{0.__globals__}"], [start]))',
        '("{0." + "__globals__}").format(start)',
    ],
)
def test_draft_accessing_attributes_through_format_is_rejected(line: str) -> None:
    assert any("format" in found for found in findings(f'TEXT = "x"\ndef start(goal, saw):\n    return {line}\n'))


def test_draft_with_plain_format_calls_is_accepted() -> None:
    assert not findings('x = "{} {0!r:>3} {name:{width}}".format(1, name=2, width=3)\ny = format(3, ".1f")\nz = f"{x:>3}"\n')


@pytest.mark.parametrize("sizes", [{"layers": 10**7}, {"hidden": 8 * 10**6}, {"intermediate": 10**9}])
def test_tiny_model_over_one_billion_weights_is_refused(sizes: dict[str, int]) -> None:
    """The sizes come from module.json or settings.json, which may be untrusted."""
    with pytest.raises(TacitError, match=r"weights, more than 1,000,000,000"):
        TinySettings(**sizes)


TEMPLATES = Path(__file__).parents[1] / "chat_templates"


def test_chat_template_with_unbounded_computation_is_refused(tmp_path: Path) -> None:
    check_templates(TEMPLATES)
    config = tmp_path / "tokenizer_config.json"
    for text in ("{{ 9**9**9 }}", "{% set x = 'a' * n %}", "{{ 'a'.ljust(9999999999) }}", "{%- if a %}{{ n ** n }}{% endif %}"):
        for template in (text, [{"name": "default", "template": "plain ** text"}, {"name": "tool_use", "template": text}]):
            config.write_text(json.dumps({"chat_template": template}))
            with pytest.raises(TacitError, match=r"would compute with .*; pass --trust-code if you trust it"):
                check_templates(tmp_path)
    for template in (
        None,
        "",
        "**{{ messages[0].content }}** {% break %}{% generation %}",
        [{"name": "a", "template": "{{ 1 }}"}],
    ):
        config.write_text(json.dumps({"chat_template": template}))
        check_templates(tmp_path)
    config.write_text(json.dumps({"chat_template": [3]}))
    with pytest.raises(TacitError, match="cannot read the chat template"):
        check_templates(tmp_path)
