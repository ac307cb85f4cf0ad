"""Flags of commands that can play skill modules."""

from __future__ import annotations

from tacit.assembly.flags import Parser


def add_module_flags(parser: Parser) -> None:
    group = parser.add_argument_group("skill modules")
    group.add_argument("--base-model", metavar="MODEL", help="where their base lies, if not where it was in training")
    group.add_argument("--fallback", metavar="SKILL", help="the module for families that none is for (default: refuse them)")
