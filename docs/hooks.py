"""mkdocs hook: links to files of the repository outside docs/ must exist; the site shows them as file names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    folder = (DOCS / page.file.src_uri).parent

    def replace(match: re.Match[str]) -> str:
        text, target = match.group(1), match.group(2)
        if "://" in target or target.startswith("mailto:"):
            return match.group(0)
        path = (folder / target).resolve()
        if path.is_relative_to(DOCS):
            return match.group(0)
        if not path.exists():
            raise SystemExit(f"docs/{page.file.src_uri}: dead link to {target}")
        return f"{text} (`{path.relative_to(ROOT)}`)"

    return LINK.sub(replace, markdown)


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Add the generated reference pages."""
    from mkdocs.structure.files import File

    for name, text in {"settings": _settings(), "methods": _methods(), "worlds": _worlds()}.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def _rows(options: Any) -> str:
    from tacit.config.values import to_data

    def default(value: Any) -> str:
        try:
            shown = to_data(value)
        except Exception:
            shown = ""
        return "" if shown in (None, "") else f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"

    lines = ["| flag | in a recipe | default | meaning |", "|---|---|---|---|"]
    for option in options:
        meaning = option.help.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{option.flag}` | `{'.'.join(option.place)}` | {default(option.default)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _settings() -> str:
    from tacit.config.flags import options_of
    from tacit.engines import REGISTRY, get_engine
    from tacit.methods.grpo import GRPO
    from tacit.training.settings import TrainSettings

    parts = ["# Settings\n\nGenerated from the code. `tacit train --help` shows the most used ones.\n"]
    parts += ["## Run\n", _rows(options_of(TrainSettings)), "## GRPO and what every method shares\n", _rows(options_of(GRPO))]
    for name in REGISTRY.names:
        settings = get_engine(name).settings
        if settings is not None:
            parts += [f"## Engine `{name}`\n", _rows(options_of(settings, ("engine",), "engine."))]
    return "\n".join(parts)


def _methods() -> str:
    from tacit.config.flags import options_of
    from tacit.methods import REGISTRY, get_method
    from tacit.methods.grpo import GRPO

    shared = {option.name: option.default for option in options_of(GRPO)}
    parts = ["# Methods\n\nGenerated from the code. Only settings that GRPO does not have, or has with another default.\n"]
    for name in REGISTRY.names:
        method = get_method(name)
        summary = " ".join((method.__doc__ or "").strip().split("\n\n")[0].split())
        own = [option for option in options_of(method) if shared.get(option.name, ...) != option.default]
        parts += [f"## `{name}`\n\n{summary}\n", _rows(own) if own else ""]
    return "\n".join(parts)


def _worlds() -> str:
    from tacit.worlds import REGISTRY, get_environment

    lines = [
        "# Worlds\n\nGenerated from the code.\n",
        "| world | what it is | splits | steps | experts | state blocks |",
        "|---|---|---|---|---|---|",
    ]
    for name in REGISTRY.names:
        world = get_environment(name)
        blocks = ["full", *world.forms] if world.tracker else []
        cells = (
            f"`{name}`",
            world.summary,
            ", ".join(world.splits),
            world.max_steps,
            ", ".join(world.experts),
            ", ".join(blocks),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"
