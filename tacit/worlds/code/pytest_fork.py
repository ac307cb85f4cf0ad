"""The sandbox server's preloaded test runner: pytest is imported once, and each run is an isolated fork.

The server loads this file by its path, so it does not import Tacit. Only a fork imports the package under test, from its
workspace. To save compile time, the server holds the byte code of the original sources by hash. A changed source has another
hash, so the fork compiles it.

Each message of a fork has a number and a hash with a key that only its first frames know. If test code writes to the pipe or
replaces parts of pytest, the run counts as forged. Isolation within one process is never complete: this does not stop code
written with knowledge of this file.
"""

from __future__ import annotations

import builtins
import doctest  # noqa: F401  (imported late by tests and pytest)
import gc
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import marshal
import os
import random
import re
import sys
import tempfile
import time
import types
import unittest.mock  # noqa: F401
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import _pytest.assertion.rewrite as rewrite
import pytest
from _pytest._io import TerminalWriter

AT = "/testbed"
PYTHON, TOOLS = "/opt/python", "/opt/tools"
MESSAGE = 600  # maximum characters of a failure message
MESSAGES = 200  # maximum failed tests with a message
OPTIONS = ("-p", "no:cacheprovider", "-c", "/dev/null", "--color=no", "--disable-warnings")
"""ignore the cache and settings files of the tree"""
Codes = dict[str, bytes]
Parts = list[tuple[Any, str, Any, Any]]


def hash_source(path: str, kind: str, source: bytes) -> str:
    """Key of a file's byte code; `kind` is `plain`, or `rewritten` by pytest."""
    version = f"{sys.version}\0{pytest.__version__}\0{kind}\0{path}\0"
    return hashlib.blake2b(version.encode() + source, digest_size=20).hexdigest()


def find_sources(tree: str) -> Iterator[tuple[str, bytes]]:
    """(path within the tree, source) of all Python files."""
    for where, folders, files in os.walk(tree):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in sorted(files):
            path = os.path.join(where, name)
            if name.endswith(".py") and os.path.isfile(path):
                with open(path, "rb") as file:
                    yield os.path.relpath(path, tree), file.read()


def compile_trees(trees: list[str], cache: Path | None) -> Codes:
    """Byte code of the sources of all trees. `cache` is a directory that keeps it for later servers."""
    codes: Codes = {}
    for tree in trees:
        for relative, source in find_sources(tree):
            inside = f"{AT}/{relative}"
            is_test = "test" in relative or relative.endswith("conftest.py")
            for kind in ("plain", "rewritten") if is_test else ("plain",):
                key = hash_source(inside, kind, source)
                kept = None if cache is None else cache / f"{key}.code"
                if kept is not None and kept.is_file():
                    codes[key] = kept.read_bytes()
                    continue
                try:
                    if kind == "plain":
                        code = compile(source, inside, "exec", dont_inherit=True)
                    else:
                        parsed = rewrite.ast.parse(source, filename=inside)
                        rewrite.rewrite_asserts(parsed, source, inside, None)
                        code = compile(parsed, inside, "exec", dont_inherit=True)
                except (SyntaxError, ValueError):  # not Python: a template, or data for a test of syntax errors
                    continue
                codes[key] = marshal.dumps(code)
                if kept is not None:
                    partial = kept.with_suffix(f".{os.getpid()}")
                    partial.write_bytes(codes[key])
                    partial.rename(kept)
    return codes


def make_runner(settings: str) -> Callable[[list[str], int], int]:
    """The function `run(arguments, report)` of a fork. `settings` is JSON: `trees`, the original packages; `cache`, a directory
    or null."""
    options = json.loads(settings)
    codes = compile_trees(options["trees"], Path(options["cache"]) if options["cache"] else None)
    base_prefix, version = sys.base_prefix, f"python{sys.version_info.major}.{sys.version_info.minor}"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins would import their packages into every fork
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):  # trigger pytest's late imports
        Path(folder, "test_warm.py").write_text(
            "def test_pass(tmp_path, capsys, monkeypatch): assert 1\ndef test_fail(): assert 0\n"
        )
        pytest.main([*OPTIONS, f"--rootdir={folder}", folder])
    use_codes(codes)
    TerminalWriter.flush = lambda self: None  # type: ignore[method-assign]  # flushing would wake the server for each test
    parts = [(where, name, part, getattr(part, "__code__", None)) for where, name, part in find_parts()]
    gc.collect()
    gc.freeze()

    def run(arguments: list[str], report: int) -> int:
        global AT
        order = json.loads(arguments.pop(0))
        library = f"{PYTHON}/lib/{version}"
        if os.getcwd() == AT:
            for name in ("prefix", "base_prefix", "exec_prefix", "base_exec_prefix"):
                setattr(sys, name, PYTHON)
            sys.executable = sys._base_executable = f"{PYTHON}/bin/python3"  # type: ignore[attr-defined]
            sys.path[:] = [library, f"{library}/lib-dynload", TOOLS]
            for module in list(sys.modules.values()):  # late imports use the paths inside the sandbox
                search = getattr(module, "__path__", None)
                if isinstance(search, list):
                    search[:] = [move(path, base_prefix) for path in search]
        AT = os.getcwd()  # differs from the default with --sandbox none, where nothing is mounted
        sys.path[:0] = [f"{AT}/src"] * os.path.isdir(f"{AT}/src") + [AT]
        sys.path_importer_cache.clear()
        sys.dont_write_bytecode = True
        sys.argv = ["pytest", *arguments]
        time.tzset()
        random.seed(0)
        sys.stdout.reconfigure(line_buffering=False)  # type: ignore[union-attr]
        seen = {
            hash_source(f"{AT}/{relative}", kind, source)
            for relative, source in find_sources(AT)
            for kind in ("plain", "rewritten")
        }
        for unseen in codes.keys() - seen:  # keep only byte code of files in the workspace: the rest would reveal the originals
            del codes[unseen]
        messenger = Messenger(order["key"].encode(), report, parts)
        plugins = [messenger, CallTracer(messenger)] if order["trace"] else [messenger]
        del order
        code = int(pytest.main([*OPTIONS, f"--rootdir={AT}", *arguments], plugins=plugins))
        messenger.send({"end": code})
        sys.stdout.flush()
        sys.stderr.flush()
        return code

    return run


def move(path: str, base_prefix: str) -> str:
    """The path inside the sandbox of the server's `path`."""
    parts = re.split(rf"(?:site|dist)-packages(?:{os.sep}|$)", path, maxsplit=1)
    if len(parts) > 1:
        return f"{TOOLS}/{parts[1]}" if parts[1] else path
    return PYTHON + path[len(base_prefix) :] if path.startswith(base_prefix + os.sep) else path


def use_codes(codes: Codes) -> None:
    """Import modules of the workspace from `codes` or from source from now on, never from .pyc files."""
    loader = importlib.machinery.SourceFileLoader
    usual = loader.get_code

    def find(path: str, kind: str) -> types.CodeType | None:
        kept = codes.get(hash_source(path, kind, Path(path).read_bytes()))
        return None if kept is None else marshal.loads(kept)

    def get_code(self: Any, fullname: str) -> types.CodeType | None:
        path = self.get_filename(fullname)
        if not path.startswith(AT + "/"):
            return usual(self, fullname)
        return find(path, "plain") or self.source_to_code(self.get_data(path), path)

    loader.get_code = get_code  # type: ignore[method-assign]
    rewrite._read_pyc = lambda source, pyc, trace=None: find(str(source), "rewritten")


class Messenger:
    """A pytest plugin that sends one line per test phase, and a last one."""

    def __init__(self, key: bytes, report: int, parts: Parts) -> None:
        count, failed = 0, 0

        def send(message: dict[str, Any]) -> None:
            nonlocal count
            if "end" in message:
                message["intact"] = all(
                    where.get(name) is part and getattr(part, "__code__", None) is code for where, name, part, code in parts
                )
            body = json.dumps(message)
            proof = hashlib.blake2b(f"{count}\0{body}".encode(), key=key, digest_size=16).hexdigest()
            count += 1
            line = f"{proof} {body}\n".encode()
            while line:
                line = line[os.write(report, line) :]

        def pytest_runtest_logreport(report: Any) -> None:
            nonlocal failed
            outcome = report.outcome
            if hasattr(report, "wasxfail"):
                outcome = "xfailed" if report.skipped else "xpassed"
            if report.when == "call" or outcome != "passed":
                failed += outcome == "failed"
                reason = explain(report) if outcome == "failed" and failed <= MESSAGES else ""
                send({"test": report.nodeid, "when": report.when, "outcome": outcome, "message": reason})

        def pytest_collectreport(report: Any) -> None:
            if report.failed:
                send({"test": report.nodeid, "when": "collect", "outcome": "failed", "message": explain(report)})

        self.send = send
        self.pytest_runtest_logreport = pytest_runtest_logreport
        self.pytest_collectreport = pytest_collectreport


class CallTracer:
    """A pytest plugin that records which workspace functions each test calls; functions called by imports have the test ``."""

    def __init__(self, messenger: Messenger) -> None:
        numbers: dict[types.CodeType, int] = {}
        seen: set[int] = set()

        def note(frame: types.FrameType, event: str, argument: Any) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(AT) and frame.f_code.co_name != "<module>":
                seen.add(numbers.setdefault(frame.f_code, len(numbers)))

        def send(test: str) -> None:
            messenger.send({"caller": test, "calls": sorted(seen)})
            seen.clear()

        def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
            sys.setprofile(note)

        def pytest_runtest_logfinish(nodeid: str, location: Any) -> None:
            sys.setprofile(None)
            send(nodeid)

        def pytest_collection_finish(session: Any) -> None:
            sys.setprofile(None)
            send("")

        def pytest_sessionfinish(session: Any) -> None:
            functions = [[os.path.relpath(code.co_filename, AT), code.co_firstlineno] for code in numbers]
            messenger.send({"functions": functions})

        self.pytest_runtest_logstart = pytest_runtest_logstart
        self.pytest_runtest_logfinish = pytest_runtest_logfinish
        self.pytest_collection_finish = pytest_collection_finish
        self.pytest_sessionfinish = pytest_sessionfinish
        sys.setprofile(note)


def explain(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)[-MESSAGE:]


def find_parts() -> Iterator[tuple[Any, str, Any]]:
    """(namespace, name, value) of functions and classes that decide a test's outcome, to detect replacements. Tests may
    patch them if they undo it."""
    for name in builtins.__dict__.keys() - {"_"}:
        yield builtins.__dict__, name, builtins.__dict__[name]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("_pytest", "pluggy", "pytest") or name == "unittest.case":
            for attribute, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType | type):
                    yield vars(module), attribute, value
                if isinstance(value, type) and value.__module__ == name:
                    for member, method in list(vars(value).items()):
                        if isinstance(method, types.FunctionType):
                            yield vars(value), member, method
