"""`tacit inspect dictionary`: the phrases of a run's successes, and the run's behavior. The report has their history.

A method with a dictionary saves it in its checkpoints. For any other run it is extracted from the recorded episodes, iteration
by iteration, as ReuseRL would do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tacit.cli.terminal import make_console, percent, say, say_pairs, table
from tacit.companions.dictionary import Phrase, proposition_4
from tacit.config.flags import Parser
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.evaluation.behavior import Behavior, describe_ending
from tacit.report.dictionary import DictionaryReport, EStep, inspect_dictionary

SUMMARY_LINE = "Show a run's skill dictionary: its phrases, episodes split into phrases, and behavior."
ROWS = 12  # steps shown of a long run


def run(argv: Sequence[str]) -> int:
    parser = Parser("inspect dictionary", SUMMARY_LINE, usage="tacit inspect dictionary RUN [--iteration N] [--episodes N]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.flag("--world", "", "world of the dictionary, if the run has several", "NAME")
    parser.flag("--checkpoint", "", "checkpoint to read: newest, best, or a name such as rl-000020 (default: newest)", "NAME")
    parser.flag("--iteration", int, "iteration whose episodes to show (default: the last recorded)")
    parser.flag("--episodes", 8, "number of episodes to show, successes first")
    parser.flag("--top", 20, "number of phrases to list")
    parser.flag("--json", False, "print one JSON object")
    arguments, _ = parser.parse(argv)
    if arguments.episodes < 0 or arguments.top < 1:
        raise TacitError("--episodes must not be negative, and --top must be at least 1.")
    report = inspect_dictionary(arguments.run, arguments.checkpoint, arguments.iteration, arguments.episodes, arguments.world)
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        show(make_console(), report, arguments.top)
    return 0


def show(console: Console, report: DictionaryReport, top: int) -> None:
    story, phrases = report.story, report.story.companion.history.standing()
    dictionary, corpus = story.companion.dictionary, story.companion.successes
    say(console, f"skill dictionary, {story.source}", style="bold")
    pairs = [
        ("phrases", f"{len(dictionary)}: {len(dictionary.skills)} single skills and {len(dictionary.merged)} merged"),
        ("cost", f"{dictionary.bits:.1f} bits (K = {len(dictionary.skills)}, L = {dictionary.max_phrase})"),
        ("buffer", f"{len(corpus)} successes"),
    ]
    if story.steps:
        last = story.readings()[-1]
        single = last.single
        saved = f", {percent(1 - last.bits / single)} below the {single:.1f} bits of single skills" if single else ""
        pairs.append(("success", f"{last.bits:.1f} bits on average{saved}"))
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


def step_table(readings: Sequence[EStep]) -> Table:
    """Up to twelve evenly spaced steps, including the last."""
    chosen = sorted({round(i * (len(readings) - 1) / max(1, ROWS - 1)) for i in range(ROWS)})
    columns = ("step", "successes", "phrases", "bits", "by skill", "segments", "per phrase", "loss", "bound")
    rows = []
    for r in (readings[i] for i in chosen):
        numbers = [f"{value:.2f}" for value in (r.bits, r.single, r.segments, r.phrase_length)]
        bounds = ["-" if value is None else f"{value:.3f}" for value in (r.loss, r.bound)]
        rows.append((str(r.step), str(r.successes), str(r.phrases), *numbers, *bounds))
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
