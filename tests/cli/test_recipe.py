"""Recipes from files and flags, and errors found before anything is loaded."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.cli.train import make_parser
from tacit.config.checks import check_new_run, open_world, prepare
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.world import Environment
from tacit.methods import METHODS, get_method
from tacit.worlds.countdown import ENVIRONMENT

FILE = """
world = "countdown"
model = "tiny"
seed = 3
max-steps = 12

[method]
name = "grpo"
kl = 0.0

[prompt]
history = 1

[schedule]
groups = 4
lr = 1e-4

[sft]
steps = 10

[evaluation]
tasks = 32

[engine]
threads = 1
betas = [0.9, 0.95]

[tiny]
layers = 2
"""


def resolve(*argv: str, file: Path | None = None, method: str = "grpo") -> Recipe:
    return Recipe.resolve(file, make_parser(method).parse(argv)[1])


def refusal(*argv: str, method: str = "grpo", world: Environment = ENVIRONMENT) -> str:
    with pytest.raises(TacitError) as caught:
        prepare(resolve("--world", "countdown", "--method", method, *argv, method=method), (world,))
    return str(caught.value)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(FILE)
    return path


def test_recipe_is_read_from_a_file(file):
    recipe = resolve(file=file)
    assert (recipe.world, recipe.method, recipe.model) == ("countdown", "grpo", "tiny")
    assert (recipe.train.seed, recipe.train.max_steps, recipe.train.sft.steps) == (3, 12, 10)
    assert (recipe.settings.kl, recipe.settings.prompt.history) == (0.0, 1)
    assert (recipe.schedule.groups, recipe.schedule.lr, recipe.schedule.group_size) == (4, 1e-4, 8)
    assert recipe.engine.betas == (0.9, 0.95) and recipe.tiny.layers == 2
    assert recipe.out == Path("runs/countdown-grpo-3")


def test_flags_override_the_file(file):
    recipe = resolve("--kl", "0.5", "--groups", "9", "--max-steps", "5", "--sft.lr", "0.1", file=file)
    assert (recipe.settings.kl, recipe.settings.prompt.history) == (0.5, 1)
    assert (recipe.schedule.groups, recipe.schedule.lr) == (9, 1e-4)
    assert (recipe.train.max_steps, recipe.train.sft.steps, recipe.train.sft.lr) == (5, 10, 0.1)


def test_method_may_be_a_name(tmp_path):
    file = tmp_path / "short.toml"
    file.write_text('world = "countdown"\nmethod = "ppo"\n')
    recipe = resolve("--lam", "0.5", file=file, method="ppo")
    assert recipe.method == "ppo" and recipe.settings.lam == 0.5


def test_method_flag_keeps_the_files_other_settings(file):
    recipe = resolve("--method", "rloo", file=file, method="rloo")
    assert recipe.method == "rloo" and recipe.settings.prompt.history == 1 and recipe.out == Path("runs/countdown-rloo-3")


@pytest.mark.parametrize("method", METHODS)
def test_json_round_trip_is_exact(method):
    recipe = resolve("--world", "countdown", "--method", method, "--lr", "3e-7", "--engine.lora-rank", "4", method=method)
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    big = resolve("--world", "countdown", "--method", method, "--model", "owner/name", method=method)
    assert big.tiny is None and Recipe.from_json(json.loads(json.dumps(big.to_json()))) == big


def test_settings_of_a_run_are_a_valid_settings_file(tmp_path, file):
    recipe = resolve(file=file)
    (tmp_path / "settings.json").write_text(json.dumps(recipe.to_json()))
    assert resolve(file=tmp_path / "settings.json") == recipe


def test_tiny_policy_gets_terse_prompts_with_a_note():
    recipe = resolve("--world", "countdown")
    assert (recipe.settings.prompt.wording, recipe.settings.prompt.style, recipe.settings.prompt.admissible) == (
        "terse",
        "bare",
        False,
    )
    assert "wording = terse, style = bare, admissible = false" in recipe.notes[0]
    own = resolve("--world", "countdown", "--wording", "full", "--admissible")
    assert (own.settings.prompt.wording, own.settings.prompt.style, own.settings.prompt.admissible) == ("full", "bare", True)
    published = resolve("--world", "countdown", "--model", "owner/name")
    assert (published.settings.prompt.wording, published.settings.prompt.style) == ("full", "tags") and not published.notes


@pytest.mark.parametrize("method", METHODS)
def test_default_schedule_is_the_methods_own(method):
    """The defaults are the paper's schedule, as `--help` shows, not those of the Schedule class."""
    own = get_method(method)().schedule
    document = {"world": "countdown", "method": method}
    assert Recipe.from_json(document).schedule == own
    assert Recipe.from_json({**document, "schedule": {"lr": 0.5}}).schedule == replace(own, lr=0.5)


def test_value_head_is_enabled_when_the_method_learns_a_value():
    prepared = prepare(resolve("--world", "countdown", "--method", "ppo", method="ppo"))
    recipe, method = prepared.recipe, prepared.methods[0]
    assert (
        recipe.engine.value_head and any("engine.value_head = true" in note for note in recipe.notes) and method.name == "ppo"
    )
    assert not prepare(resolve("--world", "countdown")).recipe.engine.value_head


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wrold = 'countdown'", "unknown key `wrold`; did you mean `world`?"),
        ("world = 'countdown'\n[metod]", "did you mean `method`?"),
        ("world = 'countdown'\niteration = 3", "unknown key `iteration`; did you mean [schedule] iterations?"),
        ("world = 'countdown'\niterations = 3", "unknown key `iterations`; did you mean [schedule] iterations?"),
        ("world = 'countdown'\n[train]\niteration = 3", "unknown key `train`; did you mean [schedule] iterations?"),
        ("world = 'countdown'\nsft_steps = 3", "unknown key `sft_steps`; did you mean [sft] steps?"),
        ("world = 'countdown'\n[method]\nlr = 1.0", "unknown key `lr` in [method]; did you mean [schedule] lr?"),
        (
            "world = 'countdown'\n[schedule]\nseed = 1",
            "unknown key `seed` in [schedule]; did you mean `seed` at the top level?",
        ),
        ("world = 'countdown'\n[method]\nname = 'grpo'\nkll = 1", "unknown key `kll` in [method]; did you mean `kl`?"),
        ("world = 'countdown'\n[schedule]\ngroup = 1", "unknown key `group` in [schedule]; did you mean `groups`?"),
        ("world = 'countdown'\n[sft]\nstep = 1", "unknown key `step` in [sft]; did you mean `steps`?"),
        ("world = 'countdown'\n[engine]\ndevise = 'cpu'", "unknown key `devise` in [engine]; did you mean `device`?"),
        ("world = 'countdown'\nseed = 'one'", "seed must be a whole number, not 'one'"),
        ("world = 3", "world must be a name or a table with one, not 3"),
        ("[world]\ntests = 'hidden'", "[world] has no name, only tests"),
        ("world = 'countdown'\nmethod = 'gropo'", "unknown method 'gropo'. Did you mean 'grpo'?"),
        ("world = 'countdown'\nmethod = 3", "method must be a name or a table with one, not 3"),
        ("world = 'countdown'\n[method.schedule]\nlr = 1.0", "write [schedule], not [method.schedule]"),
        ("world = 'countdown'\nmodel = 'owner/name'\n[tiny]\nlayers = 1", "[tiny] has sizes, but the model is 'owner/name'"),
        ("world = ", "is not valid TOML"),
        ("seed = 1", "no world. Give --world NAME"),
    ],
)
def test_bad_settings_file_is_refused(tmp_path, text, message):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(TacitError) as caught:
        Recipe.resolve(file, {})
    assert message in str(caught.value)


def test_missing_settings_file_is_named(tmp_path):
    with pytest.raises(TacitError, match=r"cannot read the settings file .*none\.toml: No such file"):
        Recipe.resolve(tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--group-size", "1"], "group_size = 1 gives 'grpo' nothing to compare an episode with"),
        (["--group-size", "0"], "group_size = 0 must be at least 1"),
        (["--temperature", "0"], "temperature = 0.0 must be above 0 in training"),
        (["--top-p", "0"], "top_p = 0.0 must be above 0 and at most 1"),
        (["--evaluation.top-p", "0"], "evaluation.top_p = 0.0 must be above 0 and at most 1"),
        (["--evaluation.top-p", "1.5"], "evaluation.top_p = 1.5 must be above 0"),
        (["--evaluation.temperature", "-1"], "evaluation.temperature = -1.0 must not be negative"),
        (["--evaluation.tasks", "-1"], "evaluation.tasks = -1 must not be negative"),
        (["--iterations", "-1"], "iterations = -1 must not be negative"),
        (["--minibatch-rows", "-1"], "minibatch_rows = -1 must not be negative"),
        (["--sft.steps", "-5"], "sft.steps = -5 must not be negative"),
        (["--sft.noise", "1"], "sft.noise = 1.0 must be at least 0 and below 1"),
        (["--keep", "0"], "keep = 0 must be at least 1"),
        (["--clip-low", "1.5"], "clip_low = 1.5 must be above 0 and at most 1"),
        (["--clip-high", "0"], "clip_high = 0.0 must be above 0"),
        (["--kl", "-1"], "kl = -1.0 must not be negative"),
        (["--history", "-2"], "history = -2 must be a number of turns, or -1"),
        (["--tasks", "8", "--groups", "16"], "groups = 16 different tasks cannot be drawn from a pool of tasks = 8"),
        (["--iterations", "0"], "sft.steps and iterations are both 0"),
        (["--bound", "0"], "bound = 0 must be at least 1"),
        (["--families", "five"], "unknown family 'five' of world 'countdown'"),
        (["--split", "trian"], "unknown split 'trian' of world 'countdown'. Did you mean 'train'?"),
        (["--evaluation.split", "tset"], "unknown split 'tset' of world 'countdown'. Did you mean 'test'?"),
        (["--wording", "ters"], "unknown wording 'ters' of world 'countdown'. Did you mean 'terse'?"),
        (
            ["--sft.steps", "1", "--sft.expert", "slover"],
            "unknown expert 'slover' of world 'countdown'. Did you mean",
        ),
        (["--model", "tinny"], "unknown model 'tinny'. Did you mean 'tiny'?"),
        (["--model", "smollm2"], "Make it with `tacit prepare smollm2 DIR`"),
        (["--model", "./nowhere"], "model './nowhere': the directory does not exist"),
        (["--style", "tags"], "completions of up to 512 tokens leave no room for a prompt in 'tiny'"),
        (["--engine.max-batch", "0"], "engine setting max_batch = 0 must be at least 1"),
        (["--tiny.heads", "3"], "tiny policy: hidden = 128"),
    ],
)
def test_impossible_settings_are_refused_with_the_reason(argv, message):
    assert message in refusal(*argv)


@pytest.mark.parametrize(
    ("method", "flag", "value", "message"),
    [
        ("gigpo", "--similarity", "1.5", "similarity = 1.5 must be above 0 and at most 1"),
        ("bipace", "--key-tokens", "0", "key_tokens = 0 must be at least 1"),
        ("bipace", "--epsilon", "2.5", "epsilon = 2.5 must be between 0 and 2"),
        ("reuserl", "--horizon", "0", "horizon = 0 must be at least 1"),
        ("reuserl", "--efficiency", "-1", "efficiency = -1.0 must not be negative"),
        ("reuserl", "--max-phrase", "0", "max_phrase = 0 must be at least 1"),
        ("reuserl", "--buffer", "-1", "buffer = -1 must not be negative"),
        ("reuserl", "--delta", "1", "delta = 1.0 must be above 0 and below 1"),
    ],
)
def test_method_settings_are_bounded(method, flag, value, message):
    assert message in refusal(flag, value, method=method)


def test_group_size_one_is_allowed_without_group_comparison():
    for method in ("ppo", "reinforce_pp"):
        recipe = resolve("--world", "countdown", "--method", method, "--group-size", "1", method=method)
        prepare(recipe, (ENVIRONMENT,))
    assert "nothing to compare" in refusal("--group-size", "1", "--baseline", "group", method="reinforce_pp")
    assert "nothing to compare" in refusal("--group-size", "1", method="dapo")
    assert "gamma = 1.5 must be between 0 and 1" in refusal("--gamma", "1.5", method="ppo")


def test_missing_expert_or_text_is_refused_only_when_needed():
    bare = replace(ENVIRONMENT, experts={}, example_texts=None)
    assert "offers none" in refusal(world=bare)
    assert "has no expert" in refusal("--sft.steps", "5", world=replace(ENVIRONMENT, experts={}))
    prepare(resolve("--world", "countdown", "--model", "owner/name"), (bare,))


def test_directory_without_a_model_is_refused(tmp_path):
    assert "has no config.json" in refusal("--model", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert "has no tokenizer (tokenizer.json or the like)" in refusal("--model", str(tmp_path))
    (tmp_path / "settings.json").write_text("{}")
    assert "is a run; to start from its weights" in refusal("--model", str(tmp_path))


def test_existing_run_is_not_overwritten(tmp_path):
    check_new_run(tmp_path / "new" / "deep")
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(TacitError, match=r"already contains a run\. Resume it with `tacit train --resume \S+`, or"):
        check_new_run(tmp_path)
    (tmp_path / "settings.json").write_text('{"world": "/my/world.py:WORLD", "method": {"name": "grpo"}}')
    with pytest.raises(TacitError, match=r"Resume it with `tacit train --resume \S+ --trust-code`, or"):
        check_new_run(tmp_path)
    with pytest.raises(TacitError, match="is a file, not a directory"):
        check_new_run(tmp_path / "settings.json")
    with pytest.raises(TacitError, match=r"settings.json is a file. Name another --out"):
        check_new_run(tmp_path / "settings.json" / "run")


def test_nonempty_directory_without_a_run_is_refused(tmp_path):
    for name in (".gitkeep", "console.log", "checkpoints"):  # files of a run that stopped before its first iteration
        (tmp_path / name).touch()
        check_new_run(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        TacitError, match=r"--out \S+ is neither empty nor a run: it has notes\.txt\. Name a new directory: --out"
    ):
        check_new_run(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(TacitError, match="is not writable"):
        check_new_run(tmp_path / "run")


def test_unknown_world_suggests_the_nearest_name():
    with pytest.raises(TacitError, match=r"unknown world 'countdwon'\. Did you mean 'countdown'"):
        open_world("countdwon")


def test_prompt_settings_in_the_method_table_are_refused():
    with pytest.raises(TacitError, match=r"unknown key `history` in \[method\]; did you mean \[prompt\] history\?"):
        Recipe.from_json({"world": "countdown", "method": {"name": "grpo", "history": 1}})
    with pytest.raises(TacitError, match=r"write \[prompt\], not \[method.prompt\]"):
        Recipe.from_json({"world": "countdown", "method": {"name": "grpo", "prompt": {}}})


def test_instruction_tuned_model_gets_its_chat_template_by_default(tmp_path):
    """For a directory the tokenizer's chat template decides, for a hub id the name."""
    (tmp_path / "config.json").write_text('{"vocab_size": 50000}')
    plain = Recipe.from_json({"world": "countdown", "model": str(tmp_path)})
    assert not plain.settings.prompt.chat and not plain.notes
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    for model in (str(tmp_path), "Qwen/Qwen2.5-1.5B-Instruct"):
        recipe = Recipe.from_json({"world": "countdown", "model": model})
        assert recipe.settings.prompt.chat and "has a chat template, so chat = true; --no-chat" in recipe.notes[0]
        off = Recipe.from_json({"world": "countdown", "model": model, "prompt": {"chat": False}})
        assert not off.settings.prompt.chat and not off.notes
    for model in ("tiny", "tiny-base", "Qwen/Qwen2.5-1.5B", "HuggingFaceTB/SmolLM2-135M"):
        assert not Recipe.from_json({"world": "countdown", "model": model}).settings.prompt.chat
