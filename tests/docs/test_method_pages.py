"""The method pages: the code in their equation tables exists, and so do all flags they mention."""

from __future__ import annotations

import argparse
import importlib
import re
from functools import cache, reduce
from pathlib import Path

import pytest
from forked import run_script

from tacit.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = {file.stem: file.read_text(encoding="utf-8") for file in sorted((ROOT / "docs" / "methods").glob("*.md"))}
METHODS = {"complementary_rl": "complementary"}
"""pages whose name differs from the method's"""
FLAG = r"--[a-z][\w.-]*\w"
each_page = pytest.mark.parametrize("name", PAGES)


def equations(name: str) -> list[str]:
    return [line for line in PAGES[name].splitlines() if line.startswith("|") and "`tacit/" in line]


@each_page
def test_page_has_an_equation_table(name):
    assert len(equations(name)) >= 12


@each_page
def test_equations_point_at_existing_code(name):
    for row in equations(name):
        places = re.findall(r"`(tacit/[\w/]+)\.py`((?:[,;]? `[\w.]+`)+)", row)
        assert places, row
        for file, names in places:
            module = importlib.import_module(file.replace("/", "."))
            for found in re.findall(r"`([\w.]+)`", names):
                assert reduce(getattr, found.split("."), module) is not None, row


def commands(name: str) -> list[str]:
    """Commands of the page, as code blocks and inline."""
    return ["".join(found) for found in re.findall(r"^ {4}((?:tacit|python) .*)|`((?:tacit|python) [^`]+)`", PAGES[name], re.M)]


@cache
def flags_of(command: str, method: str) -> frozenset[str]:
    """The flags that the parser of `tacit train`, `tacit inspect dictionary` or a script accepts."""
    program, *words = command.split()
    if program == "python":
        return frozenset(re.findall(FLAG, run_script(ROOT / words[0], "--help").finish()))
    flags: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "print_help", lambda parser: flags.update(parser._option_string_actions))
        assert main([*words, "--help", "--method", METHODS.get(method, method)]) == 0
    return frozenset(flags)


def flags_of_command(command: str, otherwise: str) -> frozenset[str]:
    """The flags of a command as written, with the method it names."""
    begin = re.match(r"tacit( [a-z]+(?=\s|$))+|python \S+", command)
    method = re.search(r"--method (\w+)", command)
    assert begin, command
    return flags_of(begin[0], method[1] if method else otherwise)


@each_page
def test_commands_use_existing_flags(name):
    assert commands(name)
    for command in commands(name):
        assert set(re.findall(FLAG, command)) <= flags_of_command(command, name), command


@each_page
def test_flags_in_the_text_exist(name):
    others = re.findall(r"\w+", " ".join(re.findall(r"--method (\w+(?: \| \w+)*)", PAGES[name])))
    known = [flags_of(f"tacit {command}", name) for command in COMMANDS]
    known += [flags_of("tacit train", method) for method in others]
    known += [flags_of_command(command, name) for command in commands(name)]
    assert set(re.findall(FLAG, PAGES[name])) <= frozenset().union(*known)
