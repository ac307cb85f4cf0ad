"""`tacit inspect`: what a run has learned and how its credit was assigned; one subcommand per kind."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tacit.cli.terminal import (
    Command,
    add_checkpoint_flag,
    add_shared_options,
    dispatch,
    interval,
    make_console,
    peek_method,
    percent,
    say,
    say_pairs,
    shorten,
    table,
)
from tacit.companions.dictionary import Phrase, proposition_4
from tacit.config.checks import check_output_file
from tacit.config.flags import Parser
from tacit.core.bounds import AtLeastOne, Count, PositiveShare
from tacit.core.errors import TacitError
from tacit.core.progress import format_duration, pluralize
from tacit.credit.step_relative import partition_metrics
from tacit.evaluation.behavior import Behavior, describe_ending
from tacit.report.recorded import (
    BY,
    E_STEP,
    GAMMA,
    ClusterStep,
    DictionaryReport,
    as_json,
    choose_group,
    inspect_dictionary,
    list_clusters,
    partition,
    read_groups,
    value_steps,
)
from tacit.runs.directory import read_settings
from tacit.runs.files import write_json
from tacit.runs.trajectories import find_recording, read_records

if TYPE_CHECKING:
    from tacit.evaluation.credit_agreement import Estimate, Quality


# `tacit inspect dictionary`: the phrases of a run's successes, and the run's behavior. The report has their history. A method
# with a dictionary saves it in its checkpoints. For any other run it is extracted from the recorded episodes, iteration by
# iteration, as ReuseRL would do.

STEPS_SHOWN = 12  # steps shown of a long run


def run_dictionary(argv: Sequence[str]) -> int:
    summary = "Show a run's skill dictionary: its phrases, episodes split into phrases, and behavior."
    parser = Parser("inspect dictionary", summary, usage="tacit inspect dictionary RUN [--iteration N] [--episodes N]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.flag("--world", "", "world of the dictionary, if the run has several", "NAME")
    parser.flag("--checkpoint", "", "checkpoint to read: newest, best, or a name such as rl-000020 (default: newest)", "NAME")
    parser.flag("--iteration", int, "iteration whose episodes to show (default: the last recorded)")
    parser.flag("--episodes", 8, "number of episodes to show, successes first", bound=Count)
    parser.flag("--top", 20, "number of phrases to list", bound=AtLeastOne)
    parser.flag("--json", False, "print one JSON object")
    arguments, _ = parser.parse(argv)
    report = inspect_dictionary(arguments.run, arguments.checkpoint, arguments.iteration, arguments.episodes, arguments.world)
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        show_dictionary(make_console(), report, arguments.top)
    return 0


def show_dictionary(console: Console, report: DictionaryReport, top: int) -> None:
    story, phrases = report.story, report.story.companion.history.current_phrases()
    dictionary, corpus = story.companion.dictionary, story.companion.successes
    say(console, f"skill dictionary, {story.source}", style="bold")
    pairs = [
        ("phrases", f"{len(dictionary)}: {len(dictionary.skills)} single skills and {len(dictionary.merged)} merged"),
        ("cost", f"{dictionary.bits:.1f} bits (K = {len(dictionary.skills)}, L = {dictionary.max_phrase})"),
        ("buffer", f"{len(corpus)} successes"),
    ]
    if story.steps:
        last = story.readings()[-1]
        bits, single = last[E_STEP], last["single_bits"]
        saved = f", {percent(1 - bits / single)} below the {single:.1f} bits of single skills" if single else ""
        pairs.append(("success", f"{bits:.1f} bits on average{saved}"))
    if corpus:
        most = proposition_4(corpus, dictionary, story.companion.delta)
        pairs.append(("new success", f"at most {most:.1f} bits expected (Proposition 4; K*: the most segments seen)"))
    say_pairs(console, pairs)
    console.print()
    if phrases:
        say(console, f"Merged phrases{f', {len(phrases) - top} more not shown' if len(phrases) > top else ''}", style="bold")
        rows = [(" → ".join(p["phrase"]), str(p["uses"]), str(p["since"])) for p in phrases[:top]]
        console.print(table("", ("phrase", "uses", "since"), rows, numbers=("uses", "since")))
    else:
        say(console, "No merged phrases: none shortens the code yet, so successes are encoded as single skills.")
    if story.steps:
        say(console, "\nDescription length (Eq. 3) and bound (Theorem 3)", style="bold")
        console.print(step_table(story.readings()))
    if report.episodes:
        say(console, f"\nEpisodes of {report.file}", style="bold")
    for trajectory in report.episodes:
        segments = story.cut(trajectory)
        skills = pluralize(sum(map(len, segments)), "skill")
        counts = f"{pluralize(len(trajectory), 'step')}, {skills}, {pluralize(len(segments), 'segment')}"
        ending = ("won ", "green") if trajectory.success else ("lost", "red")
        console.print(Text.assemble(ending, f" {trajectory.task.id}  ", (counts, "dim")))
        console.print(Padding(mark_phrases(segments), (0, 0, 0, 5), expand=False))
    if report.behaviors:
        say(console, "\nBehavior", style="bold")
        console.print(behavior_table(report.behaviors))


def mark_phrases(segments: Sequence[Phrase]) -> Text:
    """`[EXPLORE→TAKE] TRANSPORT …`: merged phrases in brackets; single skills are dim."""
    parts = [(s[0], "dim") if len(s) == 1 else (f"[{'→'.join(s)}]", "cyan") for s in segments]
    return Text(" ").join([Text(*part) for part in parts]) if parts else Text("no skill")


def step_table(readings: Sequence[Mapping[str, Any]]) -> Table:
    """Up to twelve evenly spaced steps, including the last."""
    chosen = sorted({round(i * (len(readings) - 1) / max(1, STEPS_SHOWN - 1)) for i in range(STEPS_SHOWN)})
    columns = ("step", "successes", "phrases", "bits", "by skill", "segments", "per phrase", "loss", "bound")
    rows = []
    for r in (readings[i] for i in chosen):
        counts = [f"{r[name]:.0f}" for name in ("step", "successes", "dictionary_size")]
        numbers = [f"{r[name]:.2f}" for name in (E_STEP, "single_bits", "success_segments", "phrase_length")]
        bounds = [f"{r[name]:.3f}" if name in r else "-" for name in ("mdl_loss", "mdl_bound")]
        rows.append((*counts, *numbers, *bounds))
    return table("", columns, rows, numbers=columns[1:])


def behavior_table(behaviors: Mapping[str, Behavior]) -> Table:
    """One column per set of episodes. A kind of failure or action that a set lacks is 0; a dash if no episode could have it."""
    columns = {name: _behavior_lines(behavior) for name, behavior in behaviors.items()}
    rows = []
    for label, other in {label: text for own in columns.values() for label, text in own.items()}.items():
        row = [label]
        for name, behavior in behaviors.items():
            counted = behavior.episodes - behavior.successes if label.startswith("failures: ") else behavior.successes
            zero = ("0.0%" if other.endswith("%") else "0.00") if counted else "-"
            row.append(columns[name].get(label, zero))
        rows.append(row)
    return table("", ("", *columns), rows, numbers=tuple(columns))


def _behavior_lines(behavior: Behavior) -> dict[str, str]:
    lengths = {"steps of a success": behavior.success_length, "steps of a failure": behavior.failure_length}
    shares = {"invalid or refused, in successes": behavior.invalid, "repeated actions, in successes": behavior.repeats}
    lines = {
        "episodes": str(behavior.episodes),
        "success": percent(behavior.successes / behavior.episodes) if behavior.episodes else "-",
    }
    lines |= {label: "-" if value is None else f"{value:.2f}" for label, value in lengths.items()}
    lines |= {label: "-" if value is None else percent(value) for label, value in shares.items()}
    lines |= {f"failures: {describe_ending(label)}": percent(share) for label, share in behavior.failures.items()}
    if "RESET" in behavior.without:
        lines["resets per success"] = f"{behavior.per_success.get('RESET', 0.0):.2f}"
        lines["successes without a reset"] = percent(behavior.without["RESET"])
    lines |= {f"operations: {name.partition('_')[2] or name}": percent(share) for name, share in behavior.operators.items()}
    if not behavior.operators:
        lines |= {f"{name} per success": f"{mean:.2f}" for name, mean in behavior.per_success.items()}
    return lines


# `tacit inspect clusters`: the steps of one group by cluster.

WIDTH = 76  # characters shown of an observation


def run_clusters(argv: Sequence[str]) -> int:
    summary = "Show the clusters of a group's steps, the actions taken in each, and their credit."
    parser = Parser("inspect clusters", summary, usage="tacit inspect clusters RUN [--iteration N] [--group TASK]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.flag("--iteration", int, "iteration (default: the last recorded)")
    group_help = "task id, or its number in the iteration (default: the group with most comparisons)"
    parser.flag("--group", "", group_help, "TASK")
    parser.flag("--by", "", "clusters as recorded, or recomputed from the text (default: recorded)", "|".join(BY))
    parser.flag("--epsilon", 0.25, "radius for --by ngram", "E")
    parser.flag("--all", False, "also show clusters of one step, which get no step-level credit")
    parser.flag("--json", False, "print the group as one JSON object")
    arguments, _ = parser.parse(argv)
    settings = read_settings(arguments.run)["method"]  # raises if this is not a run directory
    path = find_recording(arguments.run, arguments.iteration)
    groups = read_groups(path)
    task = choose_group(groups, arguments.group, path)
    steps, method = groups[task], settings["name"]
    by = arguments.by or ("recorded" if all("part" in s.record for s in steps) else "identity")
    cluster_N = partition(steps, by, arguments.epsilon)
    steps = value_steps(steps, cluster_N, float(settings.get("gamma", GAMMA)))
    if arguments.json:
        print(json.dumps(as_json(task, steps, cluster_N, by, path)))
        return 0
    console, clusters, sizes = make_console(), list_clusters(steps, cluster_N), partition_metrics([cluster_N])
    members = {s.member: s.won for s in steps}
    origin = {"recorded": f"recorded by {method}", "identity": "of equal observations", "ngram": "of similar n-grams"}[by]
    branches = [s.branch for s in steps]
    shares = [f"{name} {percent(branches.count(name) / len(branches))}" for name in ("PACE", "leave one out", "zero")]
    alone = f"{percent(sizes['parts_singleton'])} of the clusters, {percent(sizes['parts_singleton_steps'])} of the steps"
    say(console, f"{task}  ({path.name})", style="bold")
    say_pairs(console, [
        ("episodes", f"{len(members)}, {sum(members.values())} won; {pluralize(len(steps), 'step')}"),
        ("clusters", f"{len(clusters)} {origin}, {sizes['parts_mean_size']:.1f} steps each, {sizes['parts_pairs']:.0f} pairs"),
        ("alone", alone),
        ("largest", f"{percent(sizes['parts_largest'])} of the steps"),
        ("branches", ", ".join(shares)),
        ("credit", f"recorded by {method}: {'step-level, then total' if 'step_credit' in steps[0].record else 'total'}"),
        ("R, Q̂, V̂", "the step's return; the mean return of its action in the cluster, and of the cluster"),
    ])  # fmt: skip
    for number, cluster in enumerate(clusters):
        if len(cluster) > 1 or arguments.all:
            console.print()
            _show_cluster(console, number, cluster)
    single = sum(len(cluster) == 1 for cluster in clusters)
    if single and not arguments.all:
        say(console, f"\nClusters of one step, which get no step-level credit: {single}; --all shows them.")
    return 0


def _show_cluster(console: Any, number: int, cluster: Sequence[ClusterStep]) -> None:
    """Print the numbered observations, then each member's action."""
    texts = {text: n for n, text in enumerate(dict.fromkeys(s.record["saw"] for s in cluster), 1)}
    actions = len({s.record["action"] for s in cluster})
    counts = (pluralize(len(cluster), "step"), pluralize(len(texts), "observation"), pluralize(actions, "action"))
    say(console, f"cluster {number}: {', '.join(counts)}", style="bold")
    for text, n in texts.items():
        say(console, f"  saw {n:<3} {shorten(text, WIDTH)}", style="dim")
    for s in cluster:
        step = f"{s.record['step_credit']:+8.3f}" if "step_credit" in s.record else " " * 8
        valid = s.record["valid"]
        action = shorten(s.record["action"], WIDTH) if valid else f"{shorten(s.record['wrote'], 24)}  (does not parse)"
        line = Text.assemble(
            f"  {step} {s.record.get('credit', 0.0):+8.3f}  ",
            (f"R {s.value:6.2f}  Q̂ {s.q:6.2f}  V̂ {s.v:6.2f}  {s.branch:<13}  ", "dim"),
            (f"{action:<40}", "cyan"),
            (f"  saw {texts[s.record['saw']]}, episode {s.member}, step {s.turn}, {'won' if s.won else 'lost'}", "dim"),
        )
        console.print(line, soft_wrap=True)


# `tacit inspect credit`: how well each estimator's credit agrees with Monte Carlo advantages.


def run_credit(argv: Sequence[str]) -> int:
    arguments, overrides = make_credit_parser(peek_method(argv, "inspect credit")).parse(argv)
    if arguments.json:
        check_output_file(arguments.json, "--json")
    from tacit.config.agents import open_target
    from tacit.config.credit_quality import circumstances, credited_groups, geometries_of, rollout_setup
    from tacit.evaluation.credit_agreement import Geometry, MeasuredGroup, quality
    from tacit.evaluation.credit_truth import value_group

    chosen = [Geometry.parse(part) for part in arguments.geometry.split(",") if part.strip()]
    methods = [part.strip() for part in arguments.methods.split(",") if part.strip()]
    console = make_console()
    layers = [geometry.layer for geometry in chosen]
    target = open_target(arguments.target, overrides, arguments.checkpoint, layers=layers)
    setup = rollout_setup(target, arguments.groups, arguments.group_size)
    measured = []
    try:
        groups = setup.collect(setup.iteration)
        say(console, f"{target.label}: iteration {setup.iteration}, {pluralize(len(groups), 'group')} of {setup.group_size}")
        geometries = chosen or geometries_of(target)
        credited, radii, left_out = credited_groups(target, groups, geometries, arguments.discount, methods)
        for number, (group, estimates) in enumerate(zip(groups, credited, strict=True), 1):
            began = time.monotonic()
            truth = value_group(setup, group, arguments.rollouts, arguments.discount, setup.seed)
            measured.append(MeasuredGroup.of(estimates, truth))
            took = format_duration(time.monotonic() - began)
            played = f"{truth.episodes} continuations, {truth.per_state:.0f} through each state"
            counts = f"{pluralize(len(group.steps), 'step')}, {estimates.ending}; {played}"
            say(console, f"  group {number} of {len(groups)}: {counts}, {took}", style="dim")
    finally:
        setup.worlds.close()
    result = quality(measured)
    show_credit(console, result, radii, left_out)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        where = circumstances(target, setup, radii, left_out, arguments.rollouts, arguments.discount)
        write_json(arguments.json, {**where, **result.to_json()})
        say(console, f"\nwritten to {arguments.json}")
    return 0


def make_credit_parser(method: str) -> Parser:
    summary = "Compare credit with the true advantage of each step under a run's policy, by Monte Carlo."
    parser = Parser("inspect credit", summary, usage="tacit inspect credit RUN [--checkpoint NAME] [settings]")
    parser.add_argument("target", metavar="RUN", help="run directory, or a model with --world")
    add_checkpoint_flag(parser)
    parser.flag("--groups", 8, "groups of the next iteration", bound=AtLeastOne)
    parser.flag("--group-size", 0, "episodes per group (default: as in training)")
    parser.flag("--rollouts", 8, "continuations per state, in two halves", "M", bound=AtLeastOne)
    parser.flag("--discount", 0.95, "discount of returns and credit", "G", bound=PositiveShare)
    help = "hidden states for BiGPO and BiPACE: --geometry=-2:last,-1:mean:0.0675; a missing radius is searched on these "
    help += "groups (default: the run's own geometry, and its layer with a searched radius)"
    parser.flag("--geometry", "", help, "LAYER:POOLING[:EPSILON],…")
    parser.flag("--methods", "", "further methods to compare, with their published settings", "NAME,…")
    parser.flag("--json", Path, "write the result to this file", "FILE")
    add_shared_options(parser, method)
    return parser


def show_credit(console: Any, result: Quality, radii: Mapping[str, float], left_out: Mapping[str, str]) -> None:
    from tacit.evaluation.credit_agreement import ENDINGS, STAGES

    console.print()
    endings = ", ".join(f"{count} {ending}" for ending, count in result.endings.items() if count)
    pairs = [
        ("groups", f"{endings}; {pluralize(result.tasks, 'task')}"),
        ("truth", f"{pluralize(result.steps, 'step')}, {pluralize(result.episodes, 'continuation')}"),
        ("advantage", f"spread {_number(result.spread)}, Monte Carlo error {_number(result.noise)} a step"),
        ("reliability", f"{_number(result.reliability)}; correlations and cosines below are corrected for this noise"),
    ]
    pairs += [("radius", f"{name}: {value:.4g}") for name, value in radii.items()]
    pairs += [("left out", f"{name}: {reason}") for name, reason in left_out.items()]
    say_pairs(console, pairs)
    undetermined = []
    for on in ("all", *ENDINGS, *STAGES):
        agreements = [agreement for agreement in result.agreements if agreement.on == on]
        steps = max((agreement.steps for agreement in agreements), default=0)
        if on != "all" and all(a.correlation.value is None and a.cosine.value is None for a in agreements):
            undetermined += [f"{on} ({steps} steps)"] if steps else []
            continue
        columns: tuple[str, ...] = ("estimator", "correlation", "gain over GRPO", "cosine")
        rows: list[tuple[str, ...]] = [
            (a.estimator, _interval(a.correlation), _interval(a.gain), _interval(a.cosine)) for a in agreements
        ]
        console.print()
        title = "credit against Q − V" + ("" if on == "all" else f", {on}: {steps} steps")
        console.print(table(title, columns, rows, numbers=columns[1:]))
    if undetermined:
        reason = "the credit is constant, or the true advantages do not exceed their noise"
        say(console, f"\nNo result for {', '.join(undetermined)}: {reason}.")
    columns = ("partition", "V unexplained", "singleton steps", "mean size", "largest")
    rows = []
    for left in result.partitions:
        alone, size, largest = (left.metrics.get(f"parts_{n}", 0.0) for n in ("singleton_steps", "mean_size", "largest"))
        rows.append((left.partition, _interval(left.unexplained), percent(alone), f"{size:.1f}", percent(largest)))
    console.print()
    console.print(table("share of V's variance within the parts of each partition", columns, rows, numbers=columns[1:]))
    say(console, "\nIntervals: 95%, bootstrap over tasks. docs/experiments/credit_quality.md defines every column.")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(figure: Estimate) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return _number(figure.value)
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


# `tacit inspect notes`: test whether a policy can use notes. Run it before comparing methods that depend on them.


def run_notes(argv: Sequence[str]) -> int:
    summary = "Test whether a policy can use notes: true, empty, placebo, and the expert's action."
    parser = Parser("inspect notes", summary, usage="tacit inspect notes RUN [--tasks N] [settings]")
    parser.add_argument("target", metavar="RUN", help="run directory, or a model with --world")
    add_checkpoint_flag(parser)
    parser.flag("--tasks", 24, "training tasks to play, from the end of the pool", bound=AtLeastOne)
    parser.flag("--members", 4, "episodes per task", bound=AtLeastOne)
    parser.flag("--json", False, "print one JSON object")
    add_shared_options(parser, peek_method(argv, "inspect notes"))
    arguments, overrides = parser.parse(argv)
    from tacit.config.agents import open_target
    from tacit.config.credit_quality import analyzer_of, rollout_setup
    from tacit.evaluation.notes import MIN_AUC_GAIN, MIN_HANDBOOK_GAIN, measure_notes

    target = open_target(arguments.target, overrides, arguments.checkpoint)
    setup = rollout_setup(target)
    settings = target.recipe.settings
    instructed = settings.prompt.wording != "terse"
    try:
        gate = measure_notes(setup, arguments.tasks, arguments.members, analyzer_of(target), instructed)
    finally:
        setup.worlds.close()
    gains = {"auc_gain": gate.auc_gain, "handbook_gain": gate.handbook_gain, "passes": gate.passes}
    if arguments.json:
        print(json.dumps({**asdict(gate), **gains}))
        return 0
    console = make_console()
    counted = f"{pluralize(gate.tasks, 'task')} × {arguments.members} episodes, {pluralize(gate.steps, 'step')} scored"
    say(console, f"{target.label} in {target.world.name}: {counted}; the expert agrees with {percent(gate.agreeing)}")
    columns = ("note", "success with it", "95%", "AUC of the shift", "95%")
    rows = []
    for result in gate.results:
        auc = "–" if result.auc is None else f"{result.auc:.2f}"
        around = "–" if result.auc_interval is None else f"[{result.auc_interval[0]:.2f}, {result.auc_interval[1]:.2f}]"
        rows.append((result.note, percent(result.success), interval(result.success_interval), auc, around))
    console.print()
    console.print(table("", columns, rows, numbers=columns[1:]))
    console.print()
    say(console, _rule("AUC, true − empty", gate.auc_gain, MIN_AUC_GAIN, "{:+.2f}"))
    say(console, _rule("success, handbook − none", gate.handbook_gain, MIN_HANDBOOK_GAIN, "{:+.1%}"))
    fails = "fails: do not compare note-based methods on this policy"
    say(console, f"the gate {'passes: this policy can use its notes' if gate.passes else fails}", style="bold")
    return 0


def _rule(name: str, gain: float | None, least: float, form: str) -> str:
    if gain is None:
        return f"{name}: not measured; it must be at least {form.format(least)}"
    holds = "holds" if gain >= least else "does not hold"
    return f"{name}: {form.format(gain)}; it must be at least {form.format(least)}: {holds}"


# `tacit inspect skills`: an episode with its hindsight skills and every token colored by its shift.

STRONG = 2.0  # shift with full color


def run_skills(argv: Sequence[str]) -> int:
    summary = "Show the effect of hindsight skills on each token of an episode."
    parser = Parser("inspect skills", summary, usage="tacit inspect skills RUN [--iteration N]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.flag("--iteration", int, "iteration (default: the last recorded)")
    parser.flag("--episode", int, "episode of the iteration, from 1 (default: the one with the largest shifts)")
    parser.flag("--json", False, "print the episode as one JSON object")
    arguments, _ = parser.parse(argv)
    path = find_recording(arguments.run, arguments.iteration)
    records = [r for r in read_records(path) if any("skills" in turn for turn in r["turns"])]
    if not records:
        raise TacitError(f"no episode of {path} has skills; only the method opid records them.")
    number = arguments.episode
    if number is not None and not 1 <= number <= len(records):
        raise TacitError(f"--episode {number} must be between 1 and {len(records)}, the number of episodes with skills.")
    largest = max(records, key=lambda r: sum(abs(turn.get("skill_shift", 0.0)) for turn in r["turns"]))
    record = largest if number is None else records[number - 1]
    if arguments.json:
        print(json.dumps(record, ensure_ascii=False))
    else:
        _show_skills(make_console(), record, path)
    return 0


def _show_skills(console: Any, record: Mapping[str, Any], path: Path) -> None:
    critical = sum("step" in lesson for turn in record["turns"] for lesson in turn.get("skills", ()))
    episode = next((s["task"] for t in record["turns"] for s in t.get("skills", ()) if "task" in s), "")
    say(console, record["goal"], style="bold")
    ended = f"{'won' if record['success'] else 'lost'} after {pluralize(len(record['turns']), 'step')}"
    rows = [("episode", f"{record['task']}, {ended}"), ("from", str(path)), ("critical steps", str(critical))]
    say_pairs(console, rows + ([("episode's skill", episode)] if episode else []))
    console.print()
    for number, turn in enumerate(record["turns"], 1):
        skill = next((s["step"] for s in turn.get("skills", ()) if "step" in s), "")
        if skill:
            console.print(Text.assemble(f"{number:>4}  ", (f"skill: {skill}", "yellow")), soft_wrap=True)
        line = Text(f"{number:>4}  " if not skill else "      ")
        line.append_text(_colored(turn))
        line.append(f"   {turn.get('skill_shift', 0.0):+.2f}", style="dim")
        console.print(line, soft_wrap=True)
    say(console, "\ngreen: the skill makes the token likelier; red: less likely; the number is their sum.", style="dim")


def _colored(turn: Mapping[str, Any]) -> Text:
    tokens = turn.get("shift_by_token")
    if not tokens:
        return Text(turn["wrote"], style="dim")
    line = Text()
    for word, shift in tokens:
        strength = min(1.0, abs(shift) / STRONG)
        weak = round(160 * (1 - strength)) + 60
        color = f"rgb({weak},200,{weak})" if shift > 0 else f"rgb(220,{weak},{weak})"
        line.append(word.replace("\n", "⏎"), style=color if strength > 0.05 else "dim")
    return line


KINDS: dict[str, Command] = {
    "dictionary": (run_dictionary, "phrases of its successes (ReuseRL), and its behavior"),
    "clusters": (run_clusters, "which steps of a group were compared, and their credit"),
    "credit": (run_credit, "agreement of each estimator's credit with Monte Carlo advantages"),
    "notes": (run_notes, "whether a policy can use notes; check this before comparing methods that need them"),
    "skills": (run_skills, "hindsight skills of an episode and their effect on each token"),
}


def run(argv: Sequence[str]) -> int:
    return dispatch(argv, "tacit inspect", "Inspect what a run has learned and how its credit was assigned.", KINDS)
