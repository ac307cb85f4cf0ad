"""`tacit report`: one self-contained HTML page of a run or a comparison. `tacit watch`: a live page of runs."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from tacit.cli.terminal import make_console, say
from tacit.config.flags import Parser
from tacit.core.bounds import Count
from tacit.core.errors import TacitError, install_command
from tacit.report.comparison_page import PAGE, write_report
from tacit.report.live import find_watched_runs
from tacit.report.sections import MAX_TRAJECTORIES
from tacit.serving.settings import ServingSettings


def run(argv: Sequence[str]) -> int:
    usage = "tacit report RUN_OR_COMPARISON [--out FILE.html] [--open]"
    parser = Parser("report", "Write a self-contained HTML report of a run or a comparison.", imports=False, usage=usage)
    parser.add_argument("path", type=Path, metavar="RUN_OR_COMPARISON", help="directory of a run or of a comparison")
    parser.flag("--out", Path, f"file of the page (default: {PAGE} in the directory)", "FILE")
    parser.flag("--open", False, "open it in the browser")
    parser.flag("--trajectories", MAX_TRAJECTORIES, "maximum number of episodes on a page", bound=Count)
    parser.flag("--runs", False, "for a comparison: also write the page of each run")
    arguments, _ = parser.parse(argv)
    path, out = arguments.path, arguments.out or arguments.path / PAGE
    for page in write_report(path, out, arguments.trajectories, arguments.runs):
        print(f"{page}  ({page.stat().st_size / 1024:,.0f} KiB)")
    if arguments.open:
        webbrowser.open(out.resolve().as_uri())
    return 0


PORT = 8766


def watch(argv: Sequence[str]) -> int:
    summary = "Serve a live report of one or several runs while they train. Nothing is written."
    parser = Parser("watch", summary, imports=False, usage="tacit watch RUN [RUN …] [--port N] [--open]")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directory; the run may start later")
    parser.flag("--port", PORT, "port on this machine; 0 chooses a free one")
    parser.flag("--open", False, "open it in the browser")
    parser.flag("--trajectories", MAX_TRAJECTORIES, "maximum number of episodes on a page", bound=Count)
    arguments, _ = parser.parse(argv)
    runs, settings = find_watched_runs(arguments.runs), ServingSettings(port=arguments.port)
    try:
        from tacit.serving.live import make_app
        from tacit.serving.server import run_server
    except ImportError as error:
        raise TacitError(f"`tacit watch` needs {error.name}: {install_command('serve')}.") from error
    console = make_console()

    def announce(address: str) -> None:
        for one in runs:
            say(console, one.name if one.has_started else f"{one.path} has not started; it is shown when it does")
        say(console, f"{address}/\n")
        say(console, "^C stops the page; the runs continue", style="dim")
        if arguments.open:
            webbrowser.open(address)

    return run_server(make_app(runs, settings, arguments.trajectories), settings, announce)
