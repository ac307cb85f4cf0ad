"""`tacit watch`: a live report page of one or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.cli.terminal import make_console, say
from tacit.config.flags import Parser
from tacit.core.errors import TacitError, install_command
from tacit.report.live import find_watched_runs
from tacit.report.viewer import MAX_TRAJECTORIES
from tacit.serving.settings import ServingSettings

SUMMARY_LINE = "Serve a live report of one or several runs while they train. Nothing is written."
PORT = 8766


def run(argv: Sequence[str]) -> int:
    parser = Parser("watch", SUMMARY_LINE, imports=False, usage="tacit watch RUN [RUN …] [--port N] [--open]")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directory; the run may start later")
    parser.flag("--port", PORT, "port on this machine; 0 chooses a free one")
    parser.flag("--open", False, "open it in the browser")
    parser.flag("--trajectories", MAX_TRAJECTORIES, "maximum number of episodes on a page")
    arguments, _ = parser.parse(argv)
    if arguments.trajectories < 0:
        raise TacitError(f"--trajectories {arguments.trajectories} must not be negative.")
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
            import webbrowser

            webbrowser.open(address)

    return run_server(make_app(runs, settings, arguments.trajectories), settings, announce)
