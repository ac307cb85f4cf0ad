"""Flags generated from settings classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from tacit.cli.eval import make_parser as eval_parser
from tacit.cli.inspect import make_credit_parser
from tacit.cli.main import main
from tacit.cli.play import make_parser as play_parser
from tacit.cli.train import make_parser
from tacit.config.flags import Option, Parser, field_docs, options_of
from tacit.config.values import build, from_data, from_text, to_data
from tacit.core.errors import TacitError
from tacit.methods import METHODS


@dataclass(frozen=True)
class Inner:
    depth: int = 3
    """how deep"""


@dataclass(frozen=True)
class Base:
    kind: ClassVar[str] = "not a setting"

    count: int = 2
    """how many; 100% of them"""
    rate: float = 0.5
    """how fast"""
    plain: int = 7


@dataclass(frozen=True)
class Everything(Base):
    rate: float = 0.25
    """how fast, said again"""
    word: str = ""
    """a word"""
    on: bool = False
    """a switch"""
    choice: Literal["red", "blue"] = "red"
    """a color"""
    names: tuple[str, ...] = ("a", "b")
    """some names"""
    pair: tuple[float, float] = (0.9, 0.99)
    """two numbers"""
    place: Path = Path("here")
    """a path"""
    maybe: int | None = None
    """a number, or none"""
    inner: Inner = field(default_factory=Inner)


def parse(*argv: str) -> dict[tuple[str, ...], object]:
    parser = Parser("test", "")
    parser.add_options("all", options_of(Everything))
    return parser.parse(argv)[1]


def test_field_docs_include_inherited_fields():
    docs = field_docs(Everything)
    assert docs["count"] == "how many; 100% of them"
    assert docs["rate"] == "how fast, said again"
    assert "plain" not in docs and "kind" not in docs


def test_each_leaf_field_is_a_flag_and_class_variables_are_not():
    names = [o.name for o in options_of(Everything)]
    assert names == ["count", "rate", "plain", "word", "on", "choice", "names", "pair", "place", "maybe", "inner.depth"]


@pytest.mark.parametrize(
    ("argv", "place", "value"),
    [
        (["--count", "-4"], "count", -4),
        (["--rate", "1e-3"], "rate", 0.001),
        (["--rate", "2"], "rate", 2.0),
        (["--word", "x=y"], "word", "x=y"),
        (["--on"], "on", True),
        (["--no-on"], "on", False),
        (["--choice", "blue"], "choice", "blue"),
        (["--names", "q_proj, v_proj"], "names", ("q_proj", "v_proj")),
        (["--names", ""], "names", ()),
        (["--pair=0.5,0.75"], "pair", (0.5, 0.75)),
        (["--place", "a/b"], "place", Path("a/b")),
        (["--maybe", "3"], "maybe", 3),
        (["--maybe", "none"], "maybe", None),
    ],
)
def test_flag_values_are_parsed_by_type(argv, place, value):
    overrides = parse(*argv)
    assert overrides == {(place,): value} and type(overrides[(place,)]) is type(value)


def test_no_flags_parse_to_nothing():
    assert parse() == {}


def test_nested_field_flag_has_section_prefix():
    assert parse("--inner.depth", "9") == {("inner", "depth"): 9}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--count", "many"], "--count must be a whole number, not 'many'"),
        (["--count", "1.5"], "--count must be a whole number, not '1.5'"),
        (["--rate", "nan"], "--rate must be a finite number, not nan"),
        (["--choice", "bleu"], "--choice must be one of red, blue, not 'bleu'. Did you mean 'blue'?"),
        (["--pair", "1"], "--pair must be a list of 2"),
        (["--pair", "1,2,3"], "--pair must be a list of 2"),
        (["--cuont", "1"], "unknown flag --cuont. Did you mean --count?"),
        (["--depth", "1"], "unknown flag --depth. Did you mean --inner.depth?"),
        (["--count"], "expected one argument"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_flag_errors_name_flag_and_value(argv, message):
    with pytest.raises(TacitError) as caught:
        parse(*argv)
    assert message in str(caught.value)


def test_abbreviated_flag_is_refused():
    with pytest.raises(TacitError, match="unknown flag --cou"):
        parse("--cou", "1")


def test_help_shows_doc_and_default():
    parser = Parser("test", "")
    parser.add_options("all", options_of(Everything))
    text = " ".join(parser.format_help().split())
    assert "--count INT how many; 100% of them (default: 2)" in text
    assert "--on, --no-on a switch (default: off)" in text
    assert "--choice {red,blue} a color (default: red)" in text
    assert "--names TEXT,… some names (default: a,b)" in text
    assert "--word TEXT a word (default: none)" in text
    unset = Option("also", ("also",), str, "", "further words; empty is all")
    parser.add_options("more", [unset])
    assert "--also TEXT further words; empty is all" in (text := " ".join(parser.format_help().split()))
    assert "empty is all (default" not in text, "the help gives the meaning of an unset value"


def test_instance_values_are_the_defaults():
    assert {o.name: o.default for o in options_of(Everything(count=5, inner=Inner(1)))}["count"] == 5
    assert {o.name: o.default for o in options_of(Everything(inner=Inner(1)))}["inner.depth"] == 1


def test_two_settings_with_one_flag_are_refused():
    parser = Parser("test", "")
    parser.add_options("one", [Option("x", ("x",), int, 0, "")])
    with pytest.raises(TacitError, match=r"two settings share the flag --x: other\.x"):
        parser.add_options("two", [Option("x", ("other", "x"), int, 0, "")])


@pytest.mark.parametrize("method", METHODS)
def test_method_flags_are_unique_and_documented(method):
    parser = make_parser(method)  # raises if two flags collide
    undocumented = [a.option_strings for a in parser._actions if not (a.help or "").strip()]
    assert not undocumented
    assert {"--kl", "--lr", "--groups", "--seed", "--sft.steps", "--evaluation.every", "--engine.device"} <= set(
        parser._option_string_actions
    )


def test_underscores_and_dashes_are_equivalent():
    parser = make_parser("grpo")
    assert parser.parse(["--group_size=4"])[1] == parser.parse(["--group-size", "4"])[1] == {("schedule", "group_size"): 4}
    assert parser.parse(["--evaluation.top_p", "0.5"])[1] == {("evaluation", "top_p"): 0.5}
    assert parser.parse(["--wandb", "my_project"])[1] == {("wandb",): "my_project"}


def test_settings_round_trip_through_a_table():
    settings = Everything(names=("x",), pair=(0.1, 0.2), maybe=4, inner=Inner(5))
    data = to_data(settings)
    assert data["place"] == "here" and data["names"] == ["x"] and data["inner"] == {"depth": 5}
    assert build(Everything, data, "") == settings


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"count": True}, "a.count must be a whole number, not True"),
        ({"count": 2.0}, "a.count must be a whole number, not 2.0"),
        ({"on": 1}, "a.on must be true or false, not 1"),
        ({"names": "x"}, "a.names must be a list, each text, not 'x'"),
        ({"names": [1]}, "a.names must be text, not 1"),
        ({"inner": 3}, "[a.inner] must be a table"),
        ({"inner": {"dept": 3}}, "unknown key `dept` in [a.inner]; did you mean `depth`?"),
    ],
)
def test_bad_table_is_refused(data, message):
    with pytest.raises(TacitError) as caught:
        build(Everything, data, "a")
    assert message in str(caught.value)


def test_whole_number_is_accepted_as_float_in_a_file():
    value = from_data(float, 3, "x")
    assert value == 3.0 and isinstance(value, float)


def test_optional_text_reads_none_as_none():
    assert from_text(str | None, "some", "x") == "some"
    assert from_text(str | None, "None", "x") is None


@pytest.mark.parametrize("command", ["eval", "play"])
def test_help_of_evaluation_hides_settings_of_training_but_accepts_them(command, capsys):
    assert main([command, "--help"]) == 0
    output = capsys.readouterr().out
    assert "--history" in output and "--engine.device" in output
    for flag in ("--clip-low", "--kl", "--success-reward", "--engine.betas"):
        assert flag not in output, flag
    target = ["run"] if command == "eval" else ["--policy", "run"]
    parser = {"eval": eval_parser, "play": play_parser}[command]("grpo")
    assert parser.parse([*target, "--kl", "0.5"])[1] == {("method", "kl"): 0.5}


def test_a_tilde_in_any_path_is_the_home_directory(monkeypatch, tmp_path):
    """A shell expands `--out ~/x`, but not `--out=~/x`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert make_credit_parser("grpo").parse(["run", "--json=~/x.json"])[0].json == tmp_path / "x.json"
    assert eval_parser("grpo").parse(["run", "--json=~/x.json"])[0].json == tmp_path / "x.json"
    assert make_parser("grpo").parse(["--out=~/run"])[1] == {("out",): tmp_path / "run"}
    assert from_data(Path, "~/x", "out") == tmp_path / "x"
    (tmp_path / "mine.toml").write_text("")
    assert make_parser("grpo").parse(["--config=~/mine.toml"])[0].config == tmp_path / "mine.toml"
    positional = Parser("demo", "")
    positional.add_argument("runs", type=Path, nargs="+")
    assert positional.parse(["~/a", "b"])[0].runs == [tmp_path / "a", Path("b")]
    with pytest.raises(TacitError, match="~nobody-here"):
        make_parser("grpo").parse(["--out=~nobody-here/x"])
