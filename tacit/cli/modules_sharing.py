"""`tacit modules pack` and `install`: a module as one file, and somebody else's among one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tacit.assembly.flags import Parser, check_at_least_one
from tacit.assembly.options import section_options
from tacit.cli.terminal import ask_yes, make_console, say
from tacit.core.errors import TacitError
from tacit.modules.carrying import Carried
from tacit.modules.drafting.fence import to_be_shown
from tacit.modules.installing import Wishes, install
from tacit.modules.module import MANIFEST, Module, read_module
from tacit.modules.packing import pack

ENGINE = ("device", "dtype", "threads", "max_batch")
MOST_MB = 2000


def pack_module(argv: Sequence[str]) -> int:
    parser = Parser(
        "modules pack",
        "A module as one file: its weights, fingerprints, a card, the licence of its base, its scores on named panels.",
        usage="tacit modules pack MODULE FILE [--base-licence NAME]",
    )
    parser.add_argument("module", type=Path, metavar="MODULE", help="directory of one module")
    parser.add_argument("file", type=Path, metavar="FILE", help="the package to write, say heat.tacit")
    parser.add_argument("--base-licence", default="", metavar="NAME", help="of its base, where the base's own files do not say")
    parser.add_argument("--replace", action="store_true", help="write over a file of that name")
    arguments, _ = parser.parse(argv)
    module, file = arguments.module.expanduser(), arguments.file.expanduser()
    if not (module / MANIFEST).is_file():
        raise TacitError(f"{module} is no module: it has no {MANIFEST}. `tacit modules {module}` says what is there.")
    if file.is_dir() or not file.parent.is_dir():
        raise TacitError(f"{file} must be a file in a directory that is there.")
    if file.exists() and not arguments.replace:
        raise TacitError(f"{file} is there already; --replace writes over it.")
    digest = pack(read_module(module), file, arguments.base_licence)
    say(make_console(), f"{file}: {file.stat().st_size:,} bytes\nsha256 {digest}")
    return 0


def install_module(argv: Sequence[str]) -> int:
    parser = Parser(
        "modules install",
        "Install a module: files against hashes, base and tracker against this machine's, on request its score.",
        usage="tacit modules install FILE|DIR|https://…|hf:OWNER/NAME[@REVISION][:PATH] --out DIR [--verify]",
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="package, directory of modules, address of a package, or hf: and a repository"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of modules; the new one is DIR/SKILL")
    parser.add_argument(
        "--verify", action="store_true", help="play its panel again, and refuse it where its score does not hold"
    )
    parser.add_argument("--sha256", default="", metavar="HEX", help="what the package must be, as whoever made it said")
    parser.add_argument("--base-model", metavar="MODEL", help="where the base lies, if not where it was in training")
    parser.add_argument("--replace", action="store_true", help="in the place of another module of the same skill")
    parser.add_argument(
        "--trust-code", action="store_true", help="let it name worlds and methods that are its maker's own code"
    )
    parser.add_argument(
        "--yes", action="store_true", help="run a draft that it brings along without asking; it is printed first"
    )
    parser.add_argument("--max-mb", type=int, default=MOST_MB, metavar="N", help=f"refuse what is larger (default: {MOST_MB})")
    parser.add_options("engine, for --verify", [o for o in section_options()["engine"] if o.place[-1] in ENGINE])
    arguments, said = parser.parse(argv)
    check_at_least_one(arguments, "max_mb")
    console = make_console()
    wishes = Wishes(
        arguments.max_mb * 1_000_000,
        arguments.sha256,
        arguments.base_model,
        arguments.replace,
        arguments.trust_code,
        arguments.verify,
        said,
        lambda module: _agreed(console, module, arguments.yes),
    )
    for found in install(arguments.source, arguments.out.expanduser(), wishes):
        where = f"installed in {found.module.path}" if found.changed else f"already in {found.module.path}"
        say(console, f"{found.module.skill}: {where}, for {', '.join(found.module.families)}")
        if found.verdict is not None:
            say(console, f"{found.module.skill}: {found.verdict}")
    return 0


def show_draft(console: Console, module: str, draft: Carried) -> None:
    """A draft is somebody's program: it is shown before it is run, here and whenever the module plays."""
    for name, text in draft.files.items():
        say(console, f"\nmodule {module} brings {name} along, which is run behind a fence whenever it plays:\n", style="bold")
        say(console, to_be_shown(text))


def _agreed(console: Console, module: Module, yes: bool) -> bool:
    assert module.draft is not None
    show_draft(console, module.skill, module.draft)
    return yes or ask_yes("Run this draft behind its fence, now and whenever the module plays?")
