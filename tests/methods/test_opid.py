"""OPID and related methods on real episodes: the skill term, its settings, and that the agent never reads a skill."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedPolicy, make_group

import tacit.companions.hindsight as teachers
from tacit.companions.hindsight import load_handbook, route
from tacit.core.bounds import check_bounds
from tacit.core.credit import Batch
from tacit.core.errors import TacitError
from tacit.core.method import NO_RESOURCES, Schedule
from tacit.core.protocols import Sampling
from tacit.core.types import IterationInfo, Observation, flat_steps
from tacit.engines import all_engines, get_engine
from tacit.engines.local.policy import load_policy
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.tiny import TinySettings
from tacit.evaluation.evaluate import evaluate
from tacit.evaluation.panels import Rules, choose_panel
from tacit.losses.distillation import Divergence, GatedLikelihood, SampledReverseKL, SkillK3
from tacit.losses.surrogates import ClippedSurrogate
from tacit.methods import get_method
from tacit.prompts.history import USE_NOW, USE_THROUGHOUT, PromptSettings
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
    method = replace(get_method(name)(**SMALL), **{"schedule": SCHEDULE, **settings}).build(WORLD)
    return Loop([Collector(method, WORLD.tasks("train", 8, 0), InProcessPool(WORLD.make), 12, 3)], policy, iterations=2)


def test_skill_credit_is_weighted_logprob_shift(policy):
    plain = loop_of(policy, "grpo").collect(1)
    opid = loop_of(policy, "opid", skill_weight=0.25)
    (method,) = [ground.method for ground in opid.collectors]
    groups = plain.groups[0]
    (hindsight,) = method.companions
    hindsight.observe(groups, policy, plain.info)
    rewards = [sum_of(method.rewards, groups, plain.info)[i] for i in range(len(groups))]
    _, shift = (term(groups, rewards, policy, plain.info) for term in method.credits)
    steps = flat_steps(groups)
    lessons = [taught for g in groups for t in g.trajectories for taught in method.credits[1].teacher.lessons(t)]
    assert any(lesson.step for taught in lessons for lesson in taught) and any(
        lesson.task for taught in lessons for lesson in taught
    )
    prompts = [p for g in groups for p in method.credits[1].teacher.prompts(g, policy)]
    taught = policy.logprobs([p[0] for p in prompts], [s.completion.tokens for s in steps])
    bare = policy.logprobs([s.prompt_tokens for s in steps], [s.completion.tokens for s in steps])
    by_hand = np.concatenate([0.25 * (a - b) for a, b in zip(taught, bare, strict=True)])
    np.testing.assert_allclose(np.concatenate([c.tokens_T for c in shift]), by_hand, atol=1e-5)
    assert np.abs(by_hand).max() > 1e-4


def sum_of(terms, groups, moment):
    found = [term(groups, moment) for term in terms]
    return [sum(own[1:], own[0]) for own in zip(*found, strict=True)]


def test_weight_zero_is_grpo_bit_for_bit(policy, tmp_path):
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


def test_group_where_all_fail_still_gives_a_gradient(policy):
    def trained(name, **settings):
        done = loop_of(policy, name, invalid_penalty=0.0, **settings).iterate(1)
        assert not any(t.success for g in done.groups for t in g.trajectories), "an untrained policy wins nothing here"
        return done.metrics

    assert trained("grpo")["grad_norm"] == 0, "GRPO has nothing to compare"
    metrics = trained("opid", skill_weight=0.5)
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


def test_training_rollouts_contain_no_skills(policy):
    done = loop_of(policy, "opid").iterate(1)
    assert not any("<note>" in step.prompt.text for step in flat_steps(done.groups))


def test_skills_and_shifts_are_recorded_per_step(policy):
    from tacit.runs.trajectories import iteration_records

    done = loop_of(policy, "opid").iterate(1)
    _, records = iteration_records(done)
    turns = [turn for record in records for turn in record["turns"]]
    assert all({"skills", "skill_shift", "shift_by_token"} <= set(turn) for turn in turns)
    turn = turns[0]
    assert sum(shift for _, shift in turn["shift_by_token"]) == pytest.approx(turn["skill_shift"], abs=1e-2)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", FAMILY)
def test_every_self_distillation_method_trains(policy, name):
    loop = loop_of(policy, name)
    before = policy.digest()
    for number in (1, 2):
        done = loop.iterate(number)
        assert np.isfinite(done.metrics["loss"]) and np.isfinite(done.metrics["grad_norm"])
    assert policy.digest() != before


@pytest.mark.parametrize("divergence", ["forward", "jsd", "sampled", "released"])
def test_opsd_trains_with_every_divergence(policy, divergence):
    for more in ({}, {"likeliest": 8, "support": "teacher"}) if divergence in ("forward", "jsd") else ({},):
        done = loop_of(policy, "opsd", divergence=divergence, **more).iterate(1)
        assert np.isfinite(done.metrics["loss"]) and done.metrics["grad_norm"] > 0


def parts_of(name: str, kind: str, world=WORLD, **settings):
    """The parts of a method whose types GRPO does not have."""
    built, plain = (get_method(m)(**(settings if m == name else {})).build(world) for m in (name, "grpo"))
    return [part for part in getattr(built, kind) if type(part) not in {type(other) for other in getattr(plain, kind)}]


def test_opid_settings_reach_its_parts():
    named = {"routing": "additive", "skill_weight": 0.5, "normalise_shift": True, "clip_shift": 2.0}
    (shift,) = parts_of("opid", "credits", **named)
    assert (shift.weight, shift.normalise, shift.clip, shift.teacher.routing) == (0.5, True, 2.0, "additive")
    search = get_environment("searchqa")
    for world, steps, most in ((WORLD, None, 5), (search, None, 2), (search, 3, 3)):
        more = {"analyzer_temperature": 0.7, "analyzer_tokens": 99, "critical_steps": steps}
        assert get_method("opid")(**more).build_analyzer(world, NO_RESOURCES).max_steps == most
        asking = get_method("opid")(analyzer="policy", **more).build_analyzer(world, NO_RESOURCES)
        assert (asking.model, asking.max_steps, asking.temperature, asking.max_tokens) == (None, most, 0.7, 99)


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
def test_distillation_settings_reach_the_loss(name, kind, settings, expected):
    assert parts_of(name, kind, **settings) == [expected]


def test_rlsd_settings_reach_its_credit_and_metrics(policy):
    (credit,) = parts_of("rlsd", "credits", modulation=0.4, modulation_bound=0.1, modulation_iterations=7, std="none")
    assert (credit.share, credit.bound, credit.until, credit.credit.std) == (0.4, 0.1, 7, None)
    metrics = loop_of(policy, "rlsd").iterate(1).metrics
    assert metrics["modulation"] == 0.5 and "episode_credit_magnitude" in metrics


@pytest.mark.parametrize(
    ("name", "settings"), [("sdar", {}), ("skill_sd", {}), ("grpo_opsd", {}), ("opsd", {"divergence": "sampled"})]
)
def test_teacher_is_scored_at_the_sampling_temperature(name, settings):
    (column,) = parts_of(name, "columns", schedule=replace(SCHEDULE, temperature=0.7), **settings)
    temperatures = []

    class Scorer(ScriptedPolicy):
        def logprobs(self, prompts, completions, temperature=1.0):
            temperatures.append(temperature)
            return [np.zeros(len(c)) for c in completions]

    column([make_group([[2], [1]])], [], Scorer(lambda prompt, seed: ""))
    assert temperatures == [0.7]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [("opid", {"clip_shift": -1.0}, "clip_shift = -1.0"), ("opid", {"critical_steps": 0}, "critical_steps = 0")]
    + [(name, {"mixture": end}, f"mixture = {end}") for name in ("opsd", "grpo_opsd") for end in (0.0, 1.0)],
)
def test_out_of_range_settings_are_refused(name, settings, words):
    with pytest.raises(TacitError, match=words):
        check_bounds(get_method(name)(**settings))


def test_skill_grpo_trains_and_evaluates_with_the_handbook():
    method = get_method("skill_grpo")(**SMALL).build(WORLD)
    task = WORLD.tasks("train", 1, 0)[0]
    (condition,) = set(method.conditions.assign(task, 4, 0))
    assert condition.name == "skill" and condition.note == WORLD.handbook[""]
    assert method.conditions.evaluated["skill"](task) == condition
    assert get_method("skill_prompt")().schedule.iterations == 0


def test_missing_rules_or_handbook_error_suggests_a_fix():
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
        (b'general = "' + b"x" * 7990 + b'"\n[families]\nclean = "and clean it"', "the text for clean has 8003 characters"),
    ],
)
def test_invalid_handbook_file_is_refused(tmp_path, written, reason):
    file = tmp_path / "skills.toml"
    file.write_bytes(written)
    with pytest.raises(TacitError, match=reason):
        get_method("skill_grpo")(handbook=str(file)).build(get_environment("alfworld"))


def test_handbook_file_is_read_only_for_its_own_world(tmp_path):
    file = tmp_path / "skills.toml"
    file.write_text('world = "alfworld"\ngeneral = "look first"\n[families]\nclean = "clean it"\n')
    household = get_environment("alfworld")
    method = get_method("skill_grpo")(handbook=str(file)).build(household)
    pages = {task.family: method.conditions.handbook.page(task) for task in household.tasks("train", 12, 0)}
    assert pages["clean"] == "look first\nclean it" and pages["heat"] == pages["pick"] == "look first"
    with pytest.raises(TacitError, match="is for world 'alfworld', but this is 'countdown'"):
        get_method("skill_grpo")(handbook=str(file)).build(WORLD)
    with pytest.raises(TacitError, match="cannot read the handbook"):
        get_method("skill_grpo")(handbook=str(tmp_path / "none.toml")).build(household)


def mixed_rollouts(loop):
    """Rollouts with every second episode marked as a success."""
    rollouts = loop.collect(1)
    groups = [
        replace(g, trajectories=tuple(replace(t, success=i % 2 == 0) for i, t in enumerate(g.trajectories)))
        for g in rollouts.groups[0]
    ]
    return replace(rollouts, groups=[groups])


def learn_mixed(policy, start, **settings):
    policy.load(start)
    loop = loop_of(policy, "opid", **settings)
    return loop.learn(mixed_rollouts(loop)).metrics


def test_gradient_share_is_measured_or_sets_the_weight(policy, tmp_path):
    policy.save(tmp_path / "start")
    loop = loop_of(policy, "opid", skill_weight=1.0)
    rollouts, method, digest = mixed_rollouts(loop), loop.collectors[0].method, policy.digest()
    (groups,), (hindsight,) = rollouts.groups, method.companions
    hindsight.observe(groups, policy, rollouts.info)
    rewards = sum_of(method.rewards, groups, rollouts.info)
    outcome, skill = (
        policy.gradient_norm(
            Batch.from_groups(groups, list(term(groups, rewards, policy, rollouts.info)), 1.0), [ClippedSurrogate()]
        )
        for term in method.credits
    )
    assert policy.digest() == digest and skill > 0 and outcome > 0

    half = learn_mixed(policy, tmp_path / "start", skill_weight=0.5)
    assert half["skill_shift/gradient_share"] == pytest.approx(0.5 * skill / outcome, rel=1e-3)
    assert half["skill_shift/weight"] == 0.5

    auto = learn_mixed(policy, tmp_path / "start", skill_weight="auto:0.1")
    assert auto["skill_shift/gradient_share"] == pytest.approx(0.1)
    assert auto["skill_shift/weight"] == pytest.approx(0.1 * outcome / skill, rel=1e-3)
    fixed = learn_mixed(policy, tmp_path / "start", skill_weight=auto["skill_shift/weight"], gradient_every=0)
    assert "skill_shift/gradient_share" not in fixed
    for name in ("grad_norm", "skill_shift/credit_magnitude"):
        assert fixed[name] == pytest.approx(auto[name], rel=1e-4)


def test_share_measured_on_a_subset_is_near_the_exact_one(policy, tmp_path):
    policy.save(tmp_path / "start")

    def share(seed: int, rows: int) -> float:
        policy.load(tmp_path / "start")
        loop = loop_of(policy, "opid", skill_weight=1.0, gradient_rows=rows)
        rollouts = mixed_rollouts(loop)
        return loop.learn(replace(rollouts, info=replace(rollouts.info, seed=seed))).metrics["skill_shift/gradient_share"]

    exact = share(0, 0)
    assert share(0, 10_000) == exact and share(1, 10_000) == exact
    estimates = [share(seed, 10) for seed in range(8)]  # of 24 steps
    assert share(0, 10) == estimates[0] and len({*estimates}) == 8
    assert np.exp(np.mean(np.log(estimates))) == pytest.approx(exact, rel=0.25)
    assert all(exact / 2 < estimate < 2 * exact for estimate in estimates)


def test_plain_prompts_are_not_scored_again(policy):
    def scored_rows(**settings) -> int:
        loop, rows = loop_of(policy, "opid", skill_weight=1.0, gradient_every=0, **settings), []
        rollouts, score = loop.collect(1), policy.logprobs
        policy.logprobs = lambda prompts, *rest: rows.append(len(prompts)) or score(prompts, *rest)
        loop.learn(rollouts)
        del policy.logprobs
        return sum(rows) / len(flat_steps(rollouts.groups[0]))

    assert scored_rows() == 1, "the sampler's log-probabilities are those of the plain prompts"
    assert scored_rows(schedule=replace(SCHEDULE, temperature=0.7)) == 2, "the shift is at temperature 1"


def test_measuring_gradients_does_not_change_the_update(policy, tmp_path):
    policy.save(tmp_path / "start")
    digests = set()
    for every in (0, 1):
        learn_mixed(policy, tmp_path / "start", skill_weight=0.5, gradient_every=every)
        digests.add(policy.digest())
    assert len(digests) == 1


def test_automatic_weight_is_zero_without_outcome_gradient(policy):
    metrics = loop_of(policy, "opid", skill_weight="auto:0.1", invalid_penalty=0.0).iterate(1).metrics
    assert metrics["skill_shift/weight"] == 0 == metrics["grad_norm"] and "skill_shift/gradient_share" not in metrics


@pytest.mark.parametrize("weight", ["auto", "auto:", "auto:0", "auto:-1", "auto:inf", "auto:nan", "much", "auto:0.1:2"])
def test_invalid_skill_weight_is_refused(weight):
    with pytest.raises(TacitError, match=f"skill_weight = '{weight}' must be a number, or auto:SHARE"):
        get_method("opid")(skill_weight=weight).build(WORLD)


def test_only_automatic_weight_needs_engine_gradients():
    assert "gradients" in get_method("opid")(skill_weight="auto:0.1").build(WORLD).needs
    assert "gradients" not in get_method("opid")().build(WORLD).needs
    with pytest.raises(TacitError, match=r"needs gradients, which engine 'tinker' cannot do. Engines that can: .*local"):
        needs = get_method("opid")(skill_weight="auto:0.1").build(WORLD).needs
        get_engine("tinker").refuse_unless_able("opid", needs, all_engines())


def test_opid_has_the_same_default_history_as_grpo():
    for name, turns in (("alfworld", 2), ("webshop", 2), ("searchqa", 4)):
        world = get_environment(name)
        assert {get_method(method)().context(world).turns for method in ("grpo", "opid", "sdar")} == {turns}
    assert get_method("opid")().with_prompt(history=5).context(get_environment("alfworld")).turns == 5


def test_skill_instruction_is_omitted_in_terse_prompts(policy):
    def texts(**settings):
        method = get_method("opid")(**(SMALL | settings)).build(WORLD)
        (group,) = loop_of(policy, "grpo").collect(1).groups[0][:1]
        method.companions[0].observe([group], policy, IterationInfo())
        return [policy.decode(p) for prompts in method.credits[1].teacher.prompts(group, policy) for p in prompts]

    full, terse = texts(prompt=PromptSettings(history=0)), texts()
    instructions = (USE_NOW, USE_THROUGHOUT)
    assert all(any(line in text for line in instructions) and "<note>" in text for text in full)
    assert not any(line in text for text in terse for line in instructions)


@pytest.mark.parametrize("notes", ["empty", "placebo", "oracle"])
def test_control_notes_replace_the_true_skills(policy, notes):
    loop = loop_of(policy, "opid", notes=notes, skill_weight=0.5)
    groups = loop.collect(1).groups[0]
    (hindsight,), teacher = loop.collectors[0].method.companions, loop.collectors[0].method.credits[1].teacher
    hindsight.observe(groups, policy, IterationInfo())
    true = replace(teacher, notes="true")
    for group, other in zip(groups, groups[::-1], strict=True):
        for trajectory in group.trajectories:
            by_step = teacher.lessons(trajectory)
            if notes == "oracle":
                solver = WORLD.expert()(trajectory.task)
                assert [lesson.step for (lesson,) in by_step] == [solver.act(step.observation) for step in trajectory.steps]
            elif notes == "empty":
                assert {(lesson.task or lesson.step) for lessons in by_step for lesson in lessons} == {"..."}
                assert [len(lessons) for lessons in by_step] == [len(lessons) for lessons in true.lessons(trajectory)]
            else:
                skills = [hindsight.skills(member) for member in other.trajectories]
                assert by_step[0] in [route(own, 0, "critical_first") for own in skills]
    done = loop.iterate(1)
    assert np.isfinite(done.metrics["loss"]) and done.metrics["skill_shift/magnitude"] > 0


def test_impossible_control_notes_are_refused():
    with pytest.raises(TacitError, match="set --groups to at least 2"):
        get_method("opid")(notes="placebo", schedule=Schedule(groups=1)).build(WORLD)
    with pytest.raises(TacitError, match="has no expert to ask"):
        get_method("opid")(notes="oracle").build(replace(WORLD, experts={}))


def write_skills(path, mapping, **pages):
    """A skill directory in the layout of SDAR's release."""
    path.mkdir()
    files = {name: f"{name}.md" for name in pages}
    (path / "skill_mapping.json").write_text(json.dumps({"skill_files": files, **mapping}))
    for name, text in pages.items():
        (path / files[name]).write_text(text)
    return str(path)


def test_sdar_skill_directory_loads_as_handbook(tmp_path):
    types = {"pick_and_place": "pick_and_place", "pick_two_obj_and_place": "pick_and_place"}
    types["pick_heat_then_place_in_recep"] = "heat"
    household = get_environment("alfworld")
    folder = write_skills(
        tmp_path / "alfworld", {"task_to_skill": types}, general_skills="g" * 4000, pick_and_place="put", heat="h" * 2000
    )
    handbook = get_method("skill_grpo")(handbook=folder).build(household).conditions.handbook
    pages = {task.family: handbook.page(task) for task in household.tasks("train", 12, 0)}
    assert pages["pick"] == pages["pick2"] == "g" * 4000 + "\nput" and pages["cool"] == "g" * 4000
    task = next(task for task in household.tasks("train", 12, 0) if task.family == "heat")
    condition = get_method("skill_grpo")(handbook=folder).build(household).conditions.condition(task)
    prompt = get_method("grpo")().context(household).begin(task, condition).read(Observation("You see a stove."))
    assert f"{'g' * 4000}\n{'h' * 2000}" in prompt.text, "a page of 6,000 characters is read whole"


def test_skill_directory_pages_are_matched_by_goal_keywords(tmp_path):
    kinds = {"apparel": "apparel", "electronics": "electronics", "other": "other"}
    words = {"apparel": ["shirt", "Dress"], "electronics": ["usb"], "other": []}
    mapping = {"task_to_skill": kinds, "task_keywords": words}
    folder = write_skills(tmp_path / "shop", mapping, general_skills="all", apparel="wear", electronics="plug", other="x")
    handbook = load_handbook(get_environment("webshop"), folder)
    task = get_environment("webshop").tasks("train", 1, 0)[0]
    pages = {goal: handbook.page(replace(task, goal=goal)) for goal in ("a red DRESS", "a shirt with usb", "a stool")}
    assert list(pages.values()) == ["all\nwear", "all\nwear\nplug", "all"]


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        (None, "is a directory without skill_mapping.json"),
        ("{", "is not JSON"),
        ('{"skill_files": []}', "must have the tables skill_files, task_to_skill"),
        ('{"skill_files": {"heat": "none.md"}}', "cannot read the handbook .*none.md"),
    ],
)
def test_unreadable_skill_directory_is_refused(tmp_path, mapping, reason):
    if mapping is not None:
        (tmp_path / "skill_mapping.json").write_text(mapping)
    with pytest.raises(TacitError, match=reason):
        load_handbook(get_environment("alfworld"), str(tmp_path))


def test_released_opsd_divergence_uses_the_sdar_gate():
    (loss,) = parts_of("opsd", "losses", divergence="released", distillation_weight=0.01)
    assert loss == GatedLikelihood(0.01, beta=5.0)
    assert not any(isinstance(part, ClippedSurrogate) for part in get_method("opsd")(divergence="released").build(WORLD).losses)
