"""Settings in which the methods of a comparison differ: reported, and refused unless a method's own table sets them."""

from __future__ import annotations

import tomllib

import pytest

from tacit.cli.main import main
from tacit.comparison.plan import Difference, Plan, make_plan
from tacit.core.errors import TacitError

REUSE = """
seeds = [0]
[common]
model = "tiny"
[common.schedule]
iterations = 4
[worlds.countdown]
[methods.grpo]
[methods.reuserl]
[methods.reuserl-batch]
name = "reuserl"
buffer = 0
"""
SAME = "\n[common.method]\ninvalid_penalty = 0.01\n"


def plan_of(text: str) -> Plan:
    return make_plan(tomllib.loads(text))


def differences(plan: Plan, world: str = "countdown") -> dict[str, Difference]:
    return {difference.setting: difference for difference in plan.differences[world]}


def test_differing_method_defaults_are_refused_with_values_and_remedies():
    with pytest.raises(TacitError) as refused:
        plan_of(REUSE)
    message = str(refused.value)
    assert "In countdown, invalid_penalty: 0.1 in grpo; 0.01 in reuserl, reuserl-batch (by the methods' defaults)." in message
    assert "[common.method]" in message and "[methods.…]" in message and 'unequal = ["invalid_penalty"]' in message


def test_common_setting_makes_methods_equal():
    assert set(differences(plan_of(REUSE + SAME))) == {"buffer"}


def test_setting_named_by_a_method_is_allowed_to_differ():
    plan = plan_of(REUSE.replace("[methods.grpo]", "[methods.grpo]\ninvalid_penalty = 0.1"))
    found = differences(plan)["invalid_penalty"]
    assert (found.named_by, found.unequal, found.values["reuserl"]) == (("grpo",), False, 0.01) and plan.notes == ()
    buffer = differences(plan)["buffer"]
    assert str(buffer) == "buffer: 256 in reuserl; 0 in reuserl-batch" and buffer.named_by == ("reuserl-batch",)


def test_naming_a_setting_in_one_method_does_not_excuse_the_others():
    text = REUSE.replace("buffer = 0", "buffer = 0\ninvalid_penalty = 0.5")
    with pytest.raises(TacitError, match=r"0\.1 in grpo; 0\.01 in reuserl; 0\.5 in reuserl-batch \(by the methods' defaults\)"):
        plan_of(text)


def test_world_specific_method_table_applies_to_that_world_only():
    text = REUSE + "[worlds.cooking]\n[worlds.countdown.methods.grpo]\ninvalid_penalty = 0.2\n"
    with pytest.raises(TacitError) as refused:
        plan_of(text)
    assert "In cooking, invalid_penalty: 0.1 in grpo" in str(refused.value) and "In countdown" not in str(refused.value)


def test_setting_listed_as_unequal_is_allowed_and_noted():
    plan = plan_of('unequal = ["invalid-penalty"]' + REUSE)
    assert differences(plan)["invalid_penalty"].unequal
    (note,) = plan.notes
    assert note.startswith("unequal in countdown: invalid_penalty: 0.1 in grpo; 0.01 in reuserl")


@pytest.mark.parametrize(
    ("unequal", "message"),
    [
        ('["invalid_penalty", "kl"]', "unequal names 'kl', but no method differs"),
        ('["invalid_penalty", "buffer"]', "unequal names 'buffer', but no method differs"),
        ('"invalid_penalty"', "unequal must be a list of settings"),
    ],
)
def test_unequal_must_list_settings_that_differ(unequal, message):
    with pytest.raises(TacitError, match=message):
        plan_of(f"unequal = {unequal}" + REUSE)


def test_differing_schedules_are_refused_with_their_section():
    text = REUSE.replace("[methods.reuserl]", "[methods.bipace]").replace("iterations = 4", "iterations = 4\ngroups = 4") + SAME
    with pytest.raises(TacitError, match=r"In countdown, schedule\.lr: 1e-06 in grpo, reuserl-batch; 5e-07 in bipace"):
        plan_of(text)
    plan = plan_of(text.replace("[methods.bipace]", "[methods.bipace]\nschedule.lr = 5e-7"))
    assert differences(plan)["schedule.lr"].named_by == ("bipace",)


def test_required_engine_setting_is_reported_but_not_refused():
    ppo = "[methods.ppo]\nsuccess_reward = 1.0\ninvalid_penalty = 0.01\n"
    plan = plan_of(REUSE.replace("[methods.reuserl]\n", ppo) + SAME)
    head = differences(plan)["engine.value_head"]
    assert not head.unequal and head.values == {"grpo": False, "ppo": True, "reuserl-batch": False}


def test_nested_settings_of_further_policies_are_compared():
    """Extractors that differ in model or LoRA rank must appear among the differences."""
    own = '[methods.{}]\nname = "complementary"\npolicies.extractor = {{ model = "tiny", engine.lora_rank = {} }}\n'
    head = REUSE.partition("[methods.grpo]")[0]
    plan = plan_of(head + own.format("low", 2) + own.format("high", 16))
    found = differences(plan)["policies.extractor.engine.lora_rank"]
    assert found.values == {"low": 2, "high": 16} and found.named_by == ("low", "high") and not found.unequal
    other = own.format("high", 2).replace('model = "tiny"', 'model = "tiny-base"')
    assert "policies.extractor.model" in differences(plan_of(head + own.format("low", 2) + other))


def test_differences_are_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "reuse.toml"
    file.write_text('unequal = ["invalid_penalty"]' + REUSE)
    assert main(["compare", str(file), "--dry-run", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "settings in which the methods differ in countdown:" in printed
    assert "0.1 in grpo; 0.01 in reuserl, reuserl-batch (by the methods' defaults)" in printed
    assert "unequal in countdown" in printed
