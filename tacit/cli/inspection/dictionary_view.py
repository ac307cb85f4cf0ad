"""How a skill dictionary is shown in a terminal: phrases with their uses, readings by step, episodes cut into phrases."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tacit.cli.terminal import percent, say, say_pairs, table
from tacit.companions.segmentation import Dictionary, Phrase, spell
from tacit.core.types import Trajectory
from tacit.evaluation.behaviour import OPERATOR, Behaviour

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.cli.inspection.dictionary_story import Story

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green", "bright_yellow",
           "bright_magenta", "bright_blue", "red")  # fmt: skip
ROWS = 12
"""steps shown of a long training"""


def show(
    console: Console,
    story: Story,
    file: Path | None,
    episodes: Sequence[Trajectory],
    behaviours: Mapping[str, Behaviour],
    top: int,
    plot: Path | None,
) -> None:
    dictionary = story.companion.dictionary
    say(console, f"skill dictionary, {story.source}", style="bold")
    pairs = [
        ("phrases", f"{len(dictionary)}: {len(dictionary.skills)} single skills and {len(dictionary.merged)} merged"),
        ("cost", f"{dictionary.bits:.1f} bits (K = {len(dictionary.skills)}, L = {dictionary.max_phrase})"),
        ("buffer", f"{len(story.companion.successes)} successes"),
    ]
    say_pairs(console, [*pairs, *([("plot", str(plot))] if plot else [])])
    console.print()
    show_phrases(console, story.phrases(), top)
    if story.steps:
        say(console, "\nDescription length (Eq. 3) and bound (Theorem 3)", style="bold")
        console.print(step_table(story.steps))
    if episodes and file is not None:
        say(console, f"\nEpisodes of {file.name}", style="bold")
        for trajectory in episodes:
            show_episode(console, trajectory, story.companion.alphabet(trajectory), dictionary)
    if behaviours:
        say(console, "\nBehaviour", style="bold")
        console.print(behaviour_table(behaviours))


def show_phrases(console: Console, phrases: Sequence[Mapping[str, Any]], top: int) -> None:
    if not phrases:
        say(console, "No merged phrase: none pays for itself yet, and successes are spelled skill by skill.")
        return
    left = f", {len(phrases) - top} more not shown" if len(phrases) > top else ""
    rows = [(spell(p["phrase"]), str(p["uses"]), str(p["since"]), percent(p["present"])) for p in phrases[:top]]
    say(console, f"Merged phrases{left}", style="bold")
    console.print(table("", ("phrase", "uses", "since", "in steps"), rows, numbers=("uses", "since", "in steps")))


def step_table(steps: Sequence[Mapping[str, Any]]) -> Table:
    """Readings of up to a dozen steps, evenly spread, the last included."""
    chosen = sorted({round(i * (len(steps) - 1) / max(1, ROWS - 1)) for i in range(ROWS)})
    columns = ("step", "phrases", "bits per success", "segments", "skills per phrase", "loss", "bound")
    rows = [
        (
            str(step["step"]),
            f"{step['dictionary_size']:.0f}",
            f"{step['description_length']:.2f}",
            f"{step['success_segments']:.2f}",
            f"{step['phrase_length']:.2f}",
            _number(step.get("mdl_loss")),
            _number(step.get("mdl_bound")),
        )
        for step in (steps[i] for i in chosen)
    ]
    return table("", columns, rows, numbers=columns[1:])


def show_episode(console: Console, trajectory: Trajectory, skills: Phrase, dictionary: Dictionary) -> None:
    segments = dictionary.segment(skills)
    ending = "won " if trajectory.success else "lost"
    count = f"{len(trajectory)} steps, {len(skills)} skills, {len(segments)} segments"
    console.print(Text.assemble((ending, "green" if trajectory.success else "red"), f" {trajectory.task.id}  ", (count, "dim")))
    console.print(coloured(segments), soft_wrap=True)


def coloured(segments: Sequence[Phrase]) -> Text:
    """`[EXPLORE TAKE] TRANSPORT …`: a colour for each merged phrase, the same wherever it stands; single skills dim."""
    line = Text("     " if segments else "     no skill")
    for segment in segments:
        if len(segment) == 1:
            line.append(f"{segment[0]} ", style="dim")
        else:
            line.append(f"[{spell(segment)}]", style=colour(segment)).append(" ")
    return line


def colour(phrase: Phrase) -> str:
    return COLOURS[zlib.crc32(spell(phrase).encode()) % len(COLOURS)]


def behaviour_table(behaviours: Mapping[str, Behaviour]) -> Table:
    """One column for each set of episodes; lines of which none has a value are left out."""
    lines = {name: behaviour_lines(found) for name, found in behaviours.items()}
    labels = dict.fromkeys(label for found in lines.values() for label in found)
    rows = [(label, *(found.get(label, "-") for found in lines.values())) for label in labels]
    return table("", ("", *lines), rows, numbers=tuple(lines))


def behaviour_lines(found: Behaviour) -> dict[str, str]:
    lines = {
        "episodes": str(found.episodes),
        "success": percent(found.successes / found.episodes) if found.episodes else "-",
        "steps of a success": _number(found.success_length, 2),
        "steps of a failure": _number(found.failure_length, 2),
        "invalid or refused, in successes": _percent(found.invalid),
        "repeated actions, in successes": _percent(found.repeats),
    }
    lines |= {f"failures: {label}": percent(share) for label, share in found.failures.items()}
    if "RESET" in found.without:
        lines["resets per success"] = f"{found.per_success.get('RESET', 0.0):.2f}"
        lines["successes without a reset"] = percent(found.without["RESET"])
    lines |= {f"operations: {name.removeprefix(OPERATOR)}": percent(share) for name, share in found.operators.items()}
    if not found.operators:
        lines |= {f"{name} per success": f"{mean:.2f}" for name, mean in found.per_success.items()}
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
