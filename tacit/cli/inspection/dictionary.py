"""`tacit inspect dictionary`: the phrases a run's successes are made of, how they came and went, and how it behaves.

A run whose method keeps a dictionary has saved it with its checkpoints. For any other run the dictionary is extracted from its
recorded episodes, iteration by iteration, as ReuseRL would have done: so a GRPO run can be read in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tacit.assembly.flags import Parser
from tacit.cli.inspection.dictionary_view import show
from tacit.cli.terminal import make_console
from tacit.core.errors import TacitError
from tacit.inspection.dictionary import inspect_dictionary
from tacit.inspection.picture import plot_dictionary

SUMMARY_LINE = "Show a run's skill dictionary: its phrases, how they changed, its episodes in phrases, and how it behaves."


def run(argv: Sequence[str]) -> int:
    arguments, _ = make_parser().parse(argv)
    if arguments.episodes < 0 or arguments.top < 1:
        raise TacitError("--episodes must not be negative, and --top must be at least 1.")
    found = inspect_dictionary(arguments.run, arguments.checkpoint, arguments.iteration, arguments.episodes, arguments.world)
    plot = None if arguments.no_plot else arguments.plot or arguments.run / "dictionary.png"
    if plot is not None:
        plot_dictionary(plot, found.title, found.story)
    if arguments.json:
        print(json.dumps({**found.to_json(), "plot": str(plot) if plot else None}))
    else:
        show(make_console(), found, arguments.top, plot)
    return 0


def make_parser() -> Parser:
    parser = Parser("inspect dictionary", SUMMARY_LINE, usage="tacit inspect dictionary RUN [--iteration N] [--episodes N]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--world", default="", metavar="NAME", help="of a run in several worlds: whose dictionary")
    parser.add_argument("--checkpoint", default="", metavar="NAME", help="newest, best, or a name such as rl-000020")
    parser.add_argument("--iteration", type=int, metavar="N", help="whose episodes to show (default: the last recorded)")
    parser.add_argument("--episodes", type=int, default=8, metavar="N", help="how many of them, successes first (default: 8)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="how many phrases to list (default: 20)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where to draw it (default: RUN/dictionary.png)")
    parser.add_argument("--no-plot", action="store_true", help="draw nothing")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object instead")
    return parser
