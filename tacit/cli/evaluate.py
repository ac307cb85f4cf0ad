"""`tacit eval`: play a fixed panel with a run's checkpoint, a model or the expert, and say how it went."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.cli.options import Parser, options_of
from tacit.cli.recipe import DEFAULT_METHOD, TOP_OPTIONS, method_name, method_options, section_options
from tacit.core.errors import TacitError, unknown
from tacit.training.files import write_json
from tacit.training.run import SETTINGS, SUMMARY, read_settings, read_summary
from tacit.training.settings import EvaluationSettings, TrainSettings

if TYPE_CHECKING:
    from tacit.cli.targets import Target
    from tacit.evaluation.evaluate import PanelScore

SUMMARY_LINE = "Measure a run, a model or the expert on a fixed panel; a run's own settings make it repeat its own number."
PANEL_SETTINGS = ("split", "tasks", "repeats", "temperature", "top_p", "top_k", "max_steps")
RUN_DEFAULTS = "For a run, every default is the run's own setting."
RUN_SETTINGS = ("seed", "max_tokens", "workers", "world_timeout_s")


def run(argv: Sequence[str]) -> int:
    parser = make_parser(glance_method(argv, "eval"))
    arguments, said = parser.parse(argv)
    if arguments.panel:
        said = {**said, **_panel(arguments.panel, arguments.target, dict(said))}
    from tacit.cli.targets import open_target
    from tacit.cli.terminal import make_console
    from tacit.evaluation.evaluate import evaluate
    from tacit.evaluation.panels import Panel
    from tacit.training.train import make_worlds

    target = open_target(arguments.target, said, arguments.checkpoint)
    chosen = target.recipe.train.evaluation
    panel = Panel.of(target.world, chosen.split, chosen.tasks)
    worlds = make_worlds(target.world, target.recipe.train)
    try:
        score, _ = evaluate(
            panel, target.context, worlds, target.policy, target.sampling, target.max_steps, target.seed, chosen.repeats
        )
    finally:
        worlds.close()
    earlier = own_evaluation(target, score)
    result = _result(target, score, earlier)
    _show(make_console(), target, score, earlier)
    place = arguments.out or _place(target, result)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, result)
        print(f"written to {place}")
    if arguments.json:
        print(json.dumps(result))
    return 0


def make_parser(method: str) -> Parser:
    parser = Parser(
        "eval",
        SUMMARY_LINE,
        usage="tacit eval TARGET [--world NAME] [settings]",
        epilog="For a run, every default is the run's own setting.",
    )
    parser.add_argument("target", metavar="TARGET", help="run directory; or a model (tiny, a checkpoint, a hub id) or `expert`")
    add_checkpoint_flag(parser)
    parser.add_argument(
        "--panel", metavar="NAME", help="the panel by name, as `tacit list panels` gives it: countdown/test/128"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on the last line")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the result (a run keeps it in evaluations/)")
    parser.add_options("panel and sampling", options_of(EvaluationSettings, ("evaluation",), only=PANEL_SETTINGS))
    add_shared_options(parser, method)
    return parser


def add_checkpoint_flag(parser: Parser) -> None:
    parser.add_argument(
        "--checkpoint",
        default="",
        metavar="NAME",
        help="of a run: newest, best, sft, rl, a name such as rl-000020, or untrained (default: newest)",
    )


def add_shared_options(parser: Parser, method: str) -> None:
    """What eval and play have in common: the world, what the agent reads, and the engine."""
    parser.add_options("world and method", [o for o in TOP_OPTIONS if o.name in ("world", "method")])
    parser.add_options(
        f"method {method}",
        [o for o in method_options(method) if o.place[0] == "method"],
        "Only what the agent reads matters here.",
    )
    parser.add_options("episodes", options_of(TrainSettings, only=RUN_SETTINGS))
    for section in ("engine", "tiny"):
        parser.add_options(section, section_options()[section])


def glance_method(argv: Sequence[str], command: str) -> str:
    """The method decides which flags there are: the one named, else the run's own."""
    glance = Parser(command, "", add_help=False)
    glance.add_argument("--method")
    seen, rest = glance.parse_known_args(argv)
    if seen.method:
        return seen.method
    run = next((Path(word) for word in rest if not word.startswith("-") and (Path(word) / SETTINGS).exists()), None)
    return method_name(read_settings(run)) if run else DEFAULT_METHOD


def own_evaluation(target: Target, score: PanelScore) -> dict[str, Any] | None:
    """The run's own evaluation of this checkpoint, where it played the same episodes in the same way."""
    if target.run is None:
        return None
    from tacit.cli.targets import UNTRAINED

    if (target.run / SUMMARY).exists():
        evaluations = read_summary(target.run)["evaluations"]
    else:
        evaluations = target.checkpoint.state()["evaluations"] if target.checkpoint else []
    stage, step = (target.checkpoint.stage, target.checkpoint.step) if target.checkpoint else (UNTRAINED, 0)
    now = json.loads(json.dumps(score.to_json()))
    alike = ("panel_hash", "episodes", "sampling", "seed")
    for evaluation in evaluations:
        if (evaluation["stage"], evaluation["step"]) == (stage, step) and all(evaluation[k] == now[k] for k in alike):
            return evaluation
    return None


def _result(target: Target, score: PanelScore, earlier: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "target": target.label,
        "world": target.world.name,
        "checkpoint": target.checkpoint.path.name if target.checkpoint else None,
        **score.to_json(),
        "repeats": target.recipe.train.evaluation.repeats,
        "run_success": earlier["success"] if earlier else None,
        "equals_run": _same(score, earlier) if earlier else None,
    }


def _same(score: PanelScore, earlier: dict[str, Any]) -> bool:
    """Not only as many successes: the same turns and the same tokens, to the last digit."""
    counted = ("successes", "score", "steps", "invalid", "ineffective", "prompt_tokens", "completion_tokens")
    return all(earlier[name] == getattr(score, name) for name in counted)


def _show(console: Any, target: Target, score: PanelScore, earlier: dict[str, Any] | None) -> None:
    from tacit.cli.terminal import after, percent, say, say_pairs

    say(console, f"success {score}", style="bold")
    sampling = (
        f"temperature {score.sampling['temperature']:g}, top_p {score.sampling['top_p']:g}, top_k {score.sampling['top_k']}"
    )
    played_by_tokens = score.completion_tokens > 0
    pairs = [("of", target.label), ("panel", f"{score.panel} (hash {score.panel_hash})"), ("seed", str(score.seed))]
    pairs += [("sampling", sampling)] if played_by_tokens else []
    pairs += [("steps", f"{score.steps:.1f} per episode, {score.success_steps:.1f} where it succeeded")]
    pairs += [("actions", f"{percent(score.invalid)} did not parse, {percent(score.ineffective)} were refused by the world")]
    if played_by_tokens:
        pairs += [("tokens", f"{score.prompt_tokens:.1f} read and {score.completion_tokens:.1f} written per turn")]
    if score.crashed:
        pairs += [("crashed", f"{score.crashed} episodes ended because the world broke; they count as failures")]
    if earlier is not None:
        said = f"{percent(earlier['success'])} {after(earlier)}"
        verdict = "the same" if _same(score, earlier) else "NOT the same: other weights, library versions or hardware"
        pairs += [("the run said", f"{said}: {verdict}")]
    elif target.run is not None:
        pairs += [("the run said", "nothing about this checkpoint with these settings")]
    say_pairs(console, pairs)


def _place(target: Target, result: dict[str, Any]) -> Path | None:
    """A file of its own for each way of measuring, so that no result is written over another."""
    if target.run is None:
        return None
    from tacit.cli.targets import UNTRAINED

    sampling = result["sampling"]
    parts = [result["checkpoint"] or UNTRAINED, result["panel"], f"x{result['repeats']}", f"t{sampling['temperature']:g}"]
    parts += [f"p{sampling['top_p']:g}"] if sampling["top_p"] != 1 else []
    parts += [f"k{sampling['top_k']}"] if sampling["top_k"] else []
    name = re.sub(r"[^\w.-]+", "-", "_".join([*parts, f"seed{result['seed']}"]))
    return target.run / "evaluations" / f"{name}.json"


def _panel(name: str, target: str, said: dict[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """`countdown/test/128` as the settings it stands for."""
    from tacit.cli.checks import open_world

    place, _, count = name.rpartition("/")
    world, _, split = place.rpartition("/")
    if not world or not split or not count.isdigit():
        raise TacitError(f"--panel {name!r} is no panel name; one reads WORLD/SPLIT/TASKS, such as countdown/test/128.")
    if split not in open_world(world).splits:
        raise unknown("panel", name, [f"{world}/{s}/{count}" for s in open_world(world).splits])
    run = Path(target).expanduser()
    played = said.get(("world",)) or (read_settings(run)["world"] if (run / SETTINGS).exists() else world)
    if played != world:
        raise TacitError(f"panel {name!r} belongs to world {world!r}, but {target!r} plays {played!r}.")
    return {("world",): world, ("evaluation", "split"): split, ("evaluation", "tasks"): int(count)}
