"""`tacit serve`: skill modules as a service, over HTTP or MCP."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacit.cli.terminal import make_console, say
from tacit.config.flags import Parser, options_of, section_options
from tacit.core.errors import TacitError, install_command
from tacit.core.progress import format_duration, report_elapsed
from tacit.engines.local.settings import EngineSettings
from tacit.modules.carrying import PackagedDraft
from tacit.serving.settings import LOOPBACK, ServingSettings

ENGINE = ("device", "dtype", "threads", "max_batch")


def run(argv: Sequence[str]) -> int:
    arguments, overrides = make_parser().parse(argv)
    serving = {place[-1]: value for place, value in overrides.items() if place[0] == "serving"}
    local = serving.get("host", ServingSettings.host) in LOOPBACK
    settings = ServingSettings(**{"worlds": local, **serving})
    engine = replace(EngineSettings(), **{place[-1]: value for place, value in overrides.items() if place[0] == "engine"})

    def may_run_draft(name: str, draft: PackagedDraft) -> bool:
        """True with --yes. It does not ask: stdout may carry MCP, and modules reload without a user present."""
        from tacit.cli.modules import show_draft

        show_draft(make_console(sys.stderr), name, draft)
        return arguments.yes

    def remark(text: str) -> None:
        say(make_console(sys.stderr), text)

    names = ", ".join(map(str, arguments.modules))
    with report_elapsed(remark, lambda spent: f"loading {names}, {format_duration(spent)}"):
        try:
            from tacit.serving.server import find_tokens, serve
            from tacit.serving.service import Service
        except ImportError as error:
            raise TacitError(f"`tacit serve` needs {error.name}: {install_command('serve')}.") from error
        service = Service(arguments.modules, settings, engine, arguments.base_model, arguments.fallback, may_run_draft)
    if arguments.mcp:
        from tacit.serving.mcp_tools import serve_tools

        return serve_tools(service, remark)
    tokens, is_new = find_tokens(arguments.token_file, arguments.no_token, settings.host)
    console = make_console()

    def announce(address: str) -> None:
        key = f"#token={tokens['']}" if tokens and is_new else ""
        say(console, f"serving {', '.join(service.catalog.modules)}\n{address}/{key}")
        say(console, "^C stops; kill -HUP looks for new modules", style="dim")
        if not local:
            remedy = "put a TLS proxy in front of it (docs/guides/serving.md)"
            remark(f"warning: {settings.host} is served over plain HTTP; {remedy}")

    return serve(service, tokens, announce, remark)


def make_parser() -> Parser:
    parser = Parser(
        "serve",
        "Serve skill modules over HTTP (sessions, OpenAI-compatible chat completions, metrics, a page) or MCP.",
        usage="tacit serve MODULES [MODULES …] [--port N] [--token-file FILE] [settings]",
        epilog="Without --token-file the token is $TACIT_SERVE_TOKEN, or a new one that is printed.",
    )
    parser.add_argument("modules", type=Path, nargs="+", metavar="MODULES", help="skill modules, or directories of them")
    parser.flag("--mcp", False, "serve MCP over standard input and output instead of HTTP")
    parser.flag("--token-file", Path, "file of bearer tokens, one per line: TOKEN or CLIENT TOKEN", "FILE")
    parser.flag("--no-token", False, "require no token; loopback only")
    parser.flag("--base-model", None, "path of the base model, if it has moved since training", "MODEL")
    parser.flag("--fallback", None, "module for families without one (default: refuse them)", "SKILL")
    parser.flag("--yes", False, "run drafts contained in modules; they are printed first")
    parser.add_options("server", options_of(ServingSettings, ("serving",)))
    parser.add_options("engine", [option for option in section_options()["engine"] if option.place[-1] in ENGINE])
    return parser
