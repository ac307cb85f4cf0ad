"""`tacit inspect dictionary`: the phrases of a run's successes, their history, and the run's behavior.

A method with a dictionary saves it in its checkpoints. For any other run it is extracted from the recorded episodes, iteration
by iteration, as ReuseRL would do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tacit.cli.terminal import make_console, percent, say, say_pairs, table
from tacit.companions.dictionary.extraction import Phrase, proposition_4
from tacit.config.flags import Parser
from tacit.core.errors import TacitError
from tacit.evaluation.behavior import Behavior, describe_ending
from tacit.report.dictionary import DictionaryHistory, DictionaryReport, EStep, inspect_dictionary

# Terminal output: phrases with their counts, metrics by step, episodes split into phrases.

COLORS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green", "bright_yellow",
           "bright_magenta", "bright_blue", "red")  # fmt: skip
LEVELS = "▁▂▃▄▅▆▇█"
ROWS = 12
"""steps shown of a long run"""
WIDTH = 24
"""characters of a sparkline"""
GONE = 6
"""removed phrases listed"""


def show(console: Console, found: DictionaryReport, top: int) -> None:
    story, colors = found.story, phrase_colors(found.story)
    say(console, f"skill dictionary, {story.source}", style="bold")
    say_pairs(console, headline(story))
    console.print()
    show_phrases(console, story, top, colors)
    if story.steps:
        say(console, "\nDescription length (Eq. 3) and bound (Theorem 3)", style="bold")
        console.print(step_table(story.readings()))
    if found.episodes:
        say(console, f"\nEpisodes of {found.file}", style="bold")
        for trajectory in found.episodes:
            segments = story.cut(trajectory)
            ending = "won " if trajectory.success else "lost"
            counts = (len(trajectory), "step"), (sum(map(len, segments)), "skill"), (len(segments), "segment")
            told = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
            console.print(
                Text.assemble((ending, "green" if trajectory.success else "red"), f" {trajectory.task.id}  ", (told, "dim"))
            )
            console.print(Padding(colored(segments, colors), (0, 0, 0, 5), expand=False))
    if found.behaviors:
        say(console, "\nBehavior", style="bold")
        console.print(behavior_table(found.behaviors))


def headline(story: DictionaryHistory) -> list[tuple[str, str]]:
    dictionary, corpus = story.companion.dictionary, story.companion.successes
    pairs = [
        ("phrases", f"{len(dictionary)}: {len(dictionary.skills)} single skills and {len(dictionary.merged)} merged"),
        ("cost", f"{dictionary.bits:.1f} bits (K = {len(dictionary.skills)}, L = {dictionary.max_phrase})"),
        ("buffer", f"{len(corpus)} successes"),
    ]
    if story.steps:
        now = story.readings()[-1]
        saved = f"{percent(1 - now.bits / now.single)} below the {now.single:.1f} it takes skill by skill" if now.single else ""
        pairs.append(("success", f"{now.bits:.1f} bits on average, {saved}" if saved else f"{now.bits:.1f} bits on average"))
    if corpus:
        most = proposition_4(corpus, dictionary, story.companion.delta)
        pairs.append(("a new one", f"at most {most:.1f} bits expected (Proposition 4, K* the most segments seen)"))
    return pairs


def show_phrases(console: Console, story: DictionaryHistory, top: int, colors: Mapping[Phrase, str]) -> None:
    phrases, rates = story.phrases(), [uses for _, uses in story.rates()]
    if phrases:
        left = f", {len(phrases) - top} more not shown" if len(phrases) > top else ""
        say(console, f"Merged phrases{left}", style="bold")
        rows = []
        for found in phrases[:top]:
            phrase = tuple(found["phrase"])
            life = sparkline([uses.get(phrase) for uses in rates])
            rows.append((Text(joined(phrase), colors[phrase]), str(found["uses"]), str(found["since"]), life))
        columns = ("phrase", "uses", "since", "uses per success")
        console.print(table("", columns, rows, numbers=("uses", "since")))
    else:
        say(console, "No merged phrase: none pays for itself yet, and successes are spelled skill by skill.")
    gone = story.gone()
    if gone:
        left = f", {len(gone) - GONE} more not shown" if len(gone) > GONE else ""
        say(console, f"\nNo longer there{left}", style="bold")
        console.print(
            table("", ("phrase", "last in"), [(joined(p), str(step)) for p, step in gone[:GONE]], numbers=("last in",))
        )


def sparkline(values: Sequence[float | None]) -> str:
    """The highest value is a full block; a dot means the phrase was not in the dictionary. Long histories are averaged."""
    pieces = min(WIDTH, len(values))
    cuts = [round(i * len(values) / pieces) for i in range(pieces + 1)] if pieces else []
    means = []
    for begin, end in pairwise(cuts):
        here = [value for value in values[begin:end] if value is not None]
        means.append(sum(here) / (end - begin) if here else None)
    highest = max((mean for mean in means if mean is not None), default=0.0) or 1.0
    return "".join("·" if m is None else LEVELS[min(len(LEVELS) - 1, int(len(LEVELS) * m / highest))] for m in means)


def step_table(readings: Sequence[EStep]) -> Table:
    """Up to twelve evenly spaced steps, including the last."""
    chosen = sorted({round(i * (len(readings) - 1) / max(1, ROWS - 1)) for i in range(ROWS)})
    columns = ("step", "successes", "phrases", "bits", "by skill", "segments", "per phrase", "loss", "bound")
    rows = [
        (
            str(r.step), str(r.successes), str(r.phrases), f"{r.bits:.2f}", f"{r.single:.2f}", f"{r.segments:.2f}",
            f"{r.phrase_length:.2f}", _number(r.loss), _number(r.bound),
        )
        for r in (readings[i] for i in chosen)
    ]  # fmt: skip
    return table("", columns, rows, numbers=columns[1:])


def colored(segments: Sequence[Phrase], colors: Mapping[Phrase, str]) -> Text:
    """`[EXPLORE→TAKE] TRANSPORT …`: each merged phrase has its color; single skills are dim."""
    line = Text("" if segments else "no skill")
    for segment in segments:
        if len(segment) == 1:
            line.append(segment[0], style="dim").append(" ")
        else:
            line.append(f"[{'→'.join(segment)}]", style=colors[segment]).append(" ")
    line.rstrip()
    return line


def phrase_colors(story: DictionaryHistory) -> dict[Phrase, str]:
    """The most used phrases get their own colors."""
    used = [tuple(found["phrase"]) for found in story.phrases()]
    others = [phrase for phrase in story.companion.dictionary.merged if phrase not in used]
    return {phrase: COLORS[i % len(COLORS)] for i, phrase in enumerate([*used, *others])}


def joined(phrase: Phrase) -> str:
    return " → ".join(phrase)


def behavior_table(behaviors: Mapping[str, Behavior]) -> Table:
    """One column per set of episodes; kinds missing from a set are zero."""
    lines = {name: behavior_lines(found) for name, found in behaviors.items()}
    labels = {label: text for found in lines.values() for label, text in found.items()}
    rows = []
    for label, other in labels.items():
        rows.append((label, *(lines[name].get(label) or _none(found, label, other) for name, found in behaviors.items())))
    return table("", ("", *lines), rows, numbers=tuple(lines))


def behavior_lines(found: Behavior) -> dict[str, str]:
    lines = {
        "episodes": str(found.episodes),
        "success": percent(found.successes / found.episodes) if found.episodes else "-",
        "steps of a success": _number(found.success_length, 2),
        "steps of a failure": _number(found.failure_length, 2),
        "invalid or refused, in successes": _percent(found.invalid),
        "repeated actions, in successes": _percent(found.repeats),
    }
    lines |= {f"failures: {describe_ending(label)}": percent(share) for label, share in found.failures.items()}
    if "RESET" in found.without:
        lines["resets per success"] = f"{found.per_success.get('RESET', 0.0):.2f}"
        lines["successes without a reset"] = percent(found.without["RESET"])
    lines |= {f"operations: {name.partition('_')[2] or name}": percent(share) for name, share in found.operators.items()}
    if not found.operators:
        lines |= {f"{name} per success": f"{mean:.2f}" for name, mean in found.per_success.items()}
    return lines


def _none(found: Behavior, label: str, other: str) -> str:
    """Zero in the format of the other set's value; a dash if there are no successes or failures to count."""
    counted = found.episodes - found.successes if label.startswith("failures: ") else found.successes
    return ("0.0%" if other.endswith("%") else "0.00") if counted else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


SUMMARY_LINE = "Show a run's skill dictionary: its phrases, how they changed, its episodes in phrases, and how it behaves."


def run(argv: Sequence[str]) -> int:
    arguments, _ = make_parser().parse(argv)
    if arguments.episodes < 0 or arguments.top < 1:
        raise TacitError("--episodes must not be negative, and --top must be at least 1.")
    found = inspect_dictionary(arguments.run, arguments.checkpoint, arguments.iteration, arguments.episodes, arguments.world)
    if arguments.json:
        print(json.dumps(found.to_json()))
    else:
        show(make_console(), found, arguments.top)
    return 0


def make_parser() -> Parser:
    parser = Parser("inspect dictionary", SUMMARY_LINE, usage="tacit inspect dictionary RUN [--iteration N] [--episodes N]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.flag("--world", "", "of a run in several worlds: whose dictionary", "NAME")
    parser.flag("--checkpoint", "", "newest, best, or a name such as rl-000020", "NAME")
    parser.flag("--iteration", int, "whose episodes to show (default: the last recorded)")
    parser.flag("--episodes", 8, "how many of them, successes first")
    parser.flag("--top", 20, "how many phrases to list")
    parser.flag("--json", False, "print everything as one JSON object instead")
    return parser
