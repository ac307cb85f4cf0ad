"""`tacit report`: one self-contained HTML page of a run or a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.config.flags import Parser
from tacit.report.comparison_page import PAGE, write_report
from tacit.report.viewer import MAX_TRAJECTORIES

SUMMARY_LINE = "Write a self-contained HTML report of a run or a comparison."


def run(argv: Sequence[str]) -> int:
    usage = "tacit report RUN_OR_COMPARISON [--out FILE.html] [--open]"
    parser = Parser("report", SUMMARY_LINE, imports=False, usage=usage)
    parser.add_argument("path", type=Path, metavar="RUN_OR_COMPARISON", help="directory of a run or of a comparison")
    parser.flag("--out", Path, f"file of the page (default: {PAGE} in the directory)", "FILE")
    parser.flag("--open", False, "open it in the browser")
    parser.flag("--trajectories", MAX_TRAJECTORIES, "maximum number of episodes on a page")
    parser.flag("--runs", False, "for a comparison: also write the page of each run")
    arguments, _ = parser.parse(argv)
    path: Path = arguments.path.expanduser()
    out: Path = (arguments.out or path / PAGE).expanduser()
    for page in write_report(path, out, arguments.trajectories, arguments.runs):
        print(f"{page}  ({page.stat().st_size / 1024:,.0f} KiB)")
    if arguments.open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return 0
