"""OPID over real episodes: what it adds to GRPO, and what never reaches the agent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedPolicy, make_group

import tacit.companions.hindsight.companion as teachers
from tacit.core.bounds import check_bounds
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.core.protocols import Sampling
from tacit.core.resources import NO_RESOURCES
from tacit.core.types import flat_steps
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TinySettings
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Rules, choose_panel
from tacit.losses.distillation import Divergence, GatedLikelihood, SampledReverseKL, SkillK3
from tacit.methods import get_method
from tacit.prompts.settings import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
SMALL = {"prompt": PromptSettings(wording="terse", style="bare", admissible=False, history=1), "kl": 0.0}
SCHEDULE = Schedule(groups=2, group_size=4, lr=1e-3)
FAMILY = ("opid", "skill_grpo", "opsd", "grpo_opsd", "skill_sd", "rlsd", "sdar")


@pytest.fixture
def policy():
    sizes = TinySettings(vocab=512, hidden=32, layers=2, heads=2, kv_heads=2, intermediate=64, context=512)
    texts = lambda: WORLD.example_texts(0)  # noqa: E731
    return load_policy("tiny", EngineSettings(device="cpu", threads=1), 0, world_texts=texts, tiny=sizes)


def loop_of(policy, name: str, **settings) -> Loop:
    method = replace(get_method(name)(**SMALL), schedule=SCHEDULE, **settings).build(WORLD)
    return Loop([Collector(method, WORLD.tasks("train", 8, 0), InProcessPool(WORLD.make), 12, 3)], policy, iterations=2)


def test_the_advantage_is_the_episodes_plus_lambda_times_the_shift(policy):
    plain = loop_of(policy, "grpo").collect(1)
    opid = loop_of(policy, "opid", skill_weight=0.25)
    (method,) = [ground.method for ground in opid.collectors]
    groups = plain.groups[0]
    (hindsight,) = method.companions
    hindsight.observe(groups, policy, plain.info)
    rewards = [sum_of(method.rewards, groups, plain.info)[i] for i in range(len(groups))]
    _, shift = (term(groups, rewards, policy, plain.info) for term in method.credits)
    steps = flat_steps(groups)
    lessons = [told for g in groups for t in g.trajectories for told in method.credits[1].teacher.lessons(t)]
    assert any(lesson.step for told in lessons for lesson in told) and any(lesson.task for told in lessons for lesson in told)
    prompts = [p for g in groups for p in method.credits[1].teacher.prompts(g, policy)]
    told = policy.logprobs([p[0] for p in prompts], [s.completion.tokens for s in steps])
    bare = policy.logprobs([s.prompt_tokens for s in steps], [s.completion.tokens for s in steps])
    by_hand = np.concatenate([0.25 * (a - b) for a, b in zip(told, bare, strict=True)])
    np.testing.assert_allclose(np.concatenate([c.tokens_T for c in shift]), by_hand, atol=1e-5)
    assert np.abs(by_hand).max() > 1e-4


def sum_of(terms, groups, moment):
    found = [term(groups, moment) for term in terms]
    return [sum(own[1:], own[0]) for own in zip(*found, strict=True)]


def test_without_weight_it_is_grpo_bit_for_bit(policy, tmp_path):
    def digest_after(name, **settings):
        policy.load(tmp_path / "start")
        loop = loop_of(policy, name, **settings)
        for number in (1, 2):
            loop.iterate(number)
        return policy.digest()

    policy.save(tmp_path / "start")
    plain = digest_after("grpo")
    assert digest_after("opid", skill_weight=0.0) == plain
    assert digest_after("opid", skill_weight=0.5) != plain


def test_episodes_that_all_fail_alike_still_teach(policy):
    def practised(name, **settings):
        done = loop_of(policy, name, invalid_penalty=0.0, **settings).iterate(1)
        assert not any(t.success for g in done.groups for t in g.trajectories), "an untrained policy wins nothing here"
        return done.metrics

    assert practised("grpo")["grad_norm"] == 0, "GRPO has nothing to compare"
    metrics = practised("opid", skill_weight=0.5)
    assert metrics["grad_norm"] > 0 and metrics["skill_shift/magnitude"] > 0 and metrics["hindsight/without_skill"] == 0


def test_an_evaluation_never_builds_a_skill_prompt(policy, monkeypatch):
    method = get_method("opid")(**SMALL).build(WORLD)

    def forbidden(*_):
        raise AssertionError("a skill reached an evaluation")

    monkeypatch.setattr(teachers, "insert_lesson", forbidden)
    assert not method.conditions.evaluated
    rules = Rules(Sampling(max_tokens=12), 3)
    _, played = evaluate(choose_panel(WORLD, "test", 4), rules, InProcessPool(WORLD.make), method.context, policy)
    assert played and not any(s.prompt.task_note or s.prompt.step_note for t in played for s in t.steps)
    with pytest.raises(AssertionError, match="a skill reached"):
        loop_of(policy, "opid").iterate(1)


def test_in_training_too_the_agent_reads_no_skill(policy):
    done = loop_of(policy, "opid").iterate(1)
    assert not any("<note>" in step.prompt.text for step in flat_steps(done.groups))


def test_what_each_step_was_told_is_recorded(policy):
    from tacit.runs.trajectories import iteration_records

    done = loop_of(policy, "opid").iterate(1)
    turns = [turn for record in iteration_records(done) for turn in record["turns"]]
    assert all({"skills", "skill_shift", "shift_by_token"} <= set(turn) for turn in turns)
    turn = turns[0]
    assert sum(shift for _, shift in turn["shift_by_token"]) == pytest.approx(turn["skill_shift"], abs=1e-2)


@pytest.mark.parametrize("name", FAMILY)
def test_every_method_of_the_family_trains(policy, name):
    loop = loop_of(policy, name)
    before = policy.digest()
    for number in (1, 2):
        done = loop.iterate(number)
        assert np.isfinite(done.metrics["loss"]) and np.isfinite(done.metrics["grad_norm"])
    assert policy.digest() != before


@pytest.mark.parametrize("divergence", ["forward", "jsd", "sampled"])
def test_opsd_in_all_its_forms(policy, divergence):
    for more in ({}, {"likeliest": 8, "support": "teacher"}) if divergence != "sampled" else ({},):
        done = loop_of(policy, "opsd", divergence=divergence, **more).iterate(1)
        assert np.isfinite(done.metrics["loss"]) and done.metrics["grad_norm"] > 0


def parts_of(name: str, kind: str, world=WORLD, **settings):
    """What a method is made of, of the types that it does not share with GRPO."""
    built, plain = (get_method(m)(**(settings if m == name else {})).build(world) for m in (name, "grpo"))
    return [part for part in getattr(built, kind) if type(part) not in {type(other) for other in getattr(plain, kind)}]


def test_opid_is_made_as_its_settings_say():
    named = {"routing": "additive", "skill_weight": 0.5, "normalise_shift": True, "clip_shift": 2.0}
    (shift,) = parts_of("opid", "credits", **named)
    assert (shift.weight, shift.normalise, shift.clip, shift.teacher.routing) == (0.5, True, 2.0, "additive")
    search = get_environment("searchqa")
    for world, said, most in ((WORLD, None, 5), (search, None, 2), (search, 3, 3)):
        more = {"analyzer_temperature": 0.7, "analyzer_tokens": 99, "critical_steps": said}
        assert get_method("opid")(**more).build_analyzer(world, NO_RESOURCES).most == most
        asking = get_method("opid")(analyzer="policy", **more).build_analyzer(world, NO_RESOURCES)
        assert (asking.model, asking.most, asking.temperature, asking.max_tokens) == (None, most, 0.7, 99)


@pytest.mark.parametrize(
    ("name", "kind", "settings", "expected"),
    [
        ("sdar", "losses", {"gate": 3.0, "distillation_weight": 0.2}, GatedLikelihood(0.2, 3.0)),
        ("grpo_opsd", "losses", {"distillation_weight": 0.2}, GatedLikelihood(0.2, 0.0)),
        ("skill_sd", "losses", {"distillation_weight": 0.2}, SkillK3(0.2)),
        ("opsd", "losses", {"divergence": "sampled", "distillation_weight": 0.2}, SampledReverseKL(0.2)),
        *(
            (
                name,
                "losses",
                {"divergence": "jsd", "distillation_weight": 0.2, "mixture": 0.3, "likeliest": 7, "support": "teacher"},
                Divergence("jsd", 0.2, 0.3, 7, "teacher"),
            )
            for name in ("opsd", "grpo_opsd")
        ),
    ],
)
def test_the_others_are_made_as_their_settings_say(name, kind, settings, expected):
    assert parts_of(name, kind, **settings) == [expected]


def test_rlsd_is_made_as_its_settings_say_and_still_tells_of_the_episodes_credit(policy):
    (credit,) = parts_of("rlsd", "credits", modulation=0.4, modulation_bound=0.1, modulation_iterations=7, std="none")
    assert (credit.share, credit.bound, credit.until, credit.credit.std) == (0.4, 0.1, 7, None)
    metrics = loop_of(policy, "rlsd").iterate(1).metrics
    assert metrics["modulation"] == 0.5 and "episode_credit_magnitude" in metrics


@pytest.mark.parametrize(
    ("name", "settings"), [("sdar", {}), ("skill_sd", {}), ("grpo_opsd", {}), ("opsd", {"divergence": "sampled"})]
)
def test_a_teacher_is_scored_at_the_temperature_its_student_is_measured_at(name, settings):
    (column,) = parts_of(name, "columns", schedule=replace(SCHEDULE, temperature=0.7), **settings)
    asked = []

    class Scorer(ScriptedPolicy):
        def logprobs(self, prompts, completions, temperature=1.0):
            asked.append(temperature)
            return [np.zeros(len(c)) for c in completions]

    column([make_group([[2], [1]])], [], Scorer(lambda prompt, seed: ""))
    assert asked == [0.7]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [("opid", {"clip_shift": -1.0}, "clip_shift = -1.0"), ("opid", {"critical_steps": 0}, "critical_steps = 0")]
    + [(name, {"mixture": end}, f"mixture = {end}") for name in ("opsd", "grpo_opsd") for end in (0.0, 1.0)],
)
def test_settings_that_mean_nothing_are_refused(name, settings, words):
    with pytest.raises(TacitError, match=words):
        check_bounds(get_method(name)(**settings))


def test_skill_grpo_practises_with_the_page_and_is_measured_with_and_without():
    method = get_method("skill_grpo")(**SMALL).build(WORLD)
    task = WORLD.tasks("train", 1, 0)[0]
    (condition,) = set(method.conditions.assign(task, 4, 0))
    assert condition.name == "skill" and condition.note == WORLD.handbook[""]
    assert method.conditions.evaluated["skill"](task) == condition
    assert get_method("skill_prompt")().schedule.iterations == 0


def test_a_world_without_rules_or_handbook_is_told_what_would_help():
    bare = replace(WORLD, hindsight=None, handbook={})
    with pytest.raises(TacitError, match="--analyzer policy"):
        get_method("opid")().build(bare)
    with pytest.raises(TacitError, match="--handbook FILE"):
        get_method("sdar")().build(bare)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b'[families]\nwash = "wash it"\n', "wash"),
        (b"general = 3", "which is not a text"),
        (b'general = "caf\xe9"', "is not TOML"),
        (b'families = ["clean"]', "write them as a table"),
        (b'general = " "', "is empty"),
        (b'general = "' + b"x" * 1990 + b'"\n[families]\nclean = "and clean it"', "the text for clean has 2003 characters"),
    ],
)
def test_a_handbook_that_cannot_be_told_is_refused(tmp_path, written, reason):
    file = tmp_path / "skills.toml"
    file.write_bytes(written)
    with pytest.raises(TacitError, match=reason):
        get_method("skill_grpo")(handbook=str(file)).build(get_environment("alfworld"))


def test_a_handbook_file_is_read_and_one_for_another_world_refused(tmp_path):
    file = tmp_path / "skills.toml"
    file.write_text('world = "alfworld"\ngeneral = "look first"\n[families]\nclean = "clean it"\n')
    household = get_environment("alfworld")
    method = get_method("skill_grpo")(handbook=str(file)).build(household)
    assert method.conditions.handbook.page("clean") == "look first\nclean it"
    assert method.conditions.handbook.page("heat") == method.conditions.handbook.page("") == "look first"
    with pytest.raises(TacitError, match="is for world 'alfworld', but this is 'countdown'"):
        get_method("skill_grpo")(handbook=str(file)).build(WORLD)
    with pytest.raises(TacitError, match="cannot read the handbook"):
        get_method("skill_grpo")(handbook=str(tmp_path / "none.toml")).build(household)
