"""The process that runs a draft. `sandbox.py` starts this file by itself, without site-packages.

The protocol is JSON lines: first `{"source": "…", "kind": "tracker", "limits": {…}, "run": true}`, then one line per call.

Layers of protection, from the outside in:

    kernel         no new files or sockets (RLIMIT_NOFILE), no writing (RLIMIT_FSIZE), limited memory (RLIMIT_AS) and CPU time
                   (RLIMIT_CPU); an empty network namespace where users may create one
    audit hook     no opening, connecting, starting, deleting or loading, whatever code in this process asks
    namespace      an allowlist of builtins, modules and module attributes
    source check   forbidden names and attributes are refused before anything runs
"""

import ast
import collections
import collections.abc
import copy
import dataclasses
import enum
import functools
import itertools
import json
import math
import re
import string
import sys
import types
import typing

MODULES = {
    "collections": (collections, ("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple")),
    "collections.abc": (collections.abc, ("Iterable", "Iterator", "Mapping", "MutableMapping", "Sequence", "Callable")),
    "copy": (copy, ("copy", "deepcopy")),
    "dataclasses": (dataclasses, ("asdict", "astuple", "dataclass", "field", "replace")),
    "enum": (enum, ("Enum", "IntEnum", "StrEnum", "auto")),
    "functools": (functools, ("cache", "cmp_to_key", "lru_cache", "partial", "reduce")),
    "itertools": (itertools, tuple(name for name in dir(itertools) if name[0] != "_")),
    "json": (json, ("dumps", "loads")),
    "math": (math, tuple(name for name in dir(math) if name[0] != "_")),
    "re": (re, tuple(name for name in re.__all__ if name != "template")),
    "string": (string, ("ascii_letters", "ascii_lowercase", "ascii_uppercase", "digits", "punctuation", "whitespace")),
    "typing": (typing, ("Any", "Dict", "Iterable", "List", "Mapping", "Optional", "Sequence", "Set", "Tuple", "Union")),
}
FUTURE = "__future__"
BUILTINS = frozenset(
    "abs all any bool bytes callable chr dict divmod enumerate filter float format frozenset hash int isinstance issubclass "  # noqa: SIM905
    "iter len list map max min next object ord pow property range repr reversed round set slice sorted staticmethod "
    "classmethod str sum super tuple zip True False None NotImplemented Ellipsis __build_class__".split()
)
REFUSED = frozenset(
    "open eval exec compile input getattr setattr delattr hasattr vars globals locals dir type memoryview breakpoint exit quit "  # noqa: SIM905
    "help id __import__ __builtins__ __loader__ __spec__ __file__".split()
)
HARMLESS_DUNDERS = ("__name__", "__doc__", "__slots__")
"""not `__match_args__`, which makes a pattern read the attributes it lists"""
METHODS = frozenset(
    "__init__ __post_init__ __repr__ __str__ __bool__ __call__ __len__ __iter__ __next__ __contains__ __getitem__ __setitem__ "  # noqa: SIM905
    "__delitem__ __missing__ __reversed__ __hash__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __radd__ __iadd__ __sub__ "
    "__mul__ __neg__ __abs__ __and__ __or__ __xor__ __int__ __float__ __index__ __enter__ __exit__".split()
)  # that a class may define; not `__subclasshook__`, `__reduce_ex__` and others that let library code call into the draft
FRAMES = tuple(
    "gi_frame gi_code cr_frame cr_code ag_frame ag_code tb_frame f_back f_globals f_builtins f_locals mro".split()  # noqa: SIM905
)
FORMATS = ("format", "format_map")  # methods that read the attributes named in their text
PARTS = {
    "tracker": (("start", "update", "render", "done", "events"), ("BOUND", "REWARDS", "CLAIMS")),
    "rewards": (("events",), ("REWARDS", "CLAIMS")),
}  # kind of draft -> required functions and constants
DENIED = tuple(
    "open socket. subprocess. os. shutil. ctypes. import resource. signal. pty. fcntl. mmap. sys._getframe sys.settrace "  # noqa: SIM905
    "sys.setprofile gc. tempfile. glob. pathlib. cpython. marshal. pickle. urllib. http. ftplib. smtplib. webbrowser. winreg. "
    "msvcrt. sqlite3. code.__new__ function.__new__".split()
)
MAX_SOURCE = 60_000
MAX_FINDINGS = 20


def findings(source):
    """Forbidden code in a source, at most MAX_FINDINGS messages."""
    if len(source) > MAX_SOURCE:
        return [f"{len(source)} characters, more than {MAX_SOURCE}"]
    hidden = [number for number, line in enumerate(source.split("\n"), 1) if not line.replace("\t", " ").isprintable()]
    if hidden:  # invisible characters could make the source look different from what runs
        return [f"line {number}: a character that cannot be seen" for number in hidden[:MAX_FINDINGS]]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [
            f"line {getattr(error, 'lineno', None) or 1}: cannot be read: {getattr(error, 'msg', None) or type(error).__name__}"
        ]
    problems = []
    plain = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and _formats_plainly(node.func)}
    for node in ast.walk(tree):
        for reason in _check_node(node, id(node) in plain):
            problems.append(f"line {getattr(node, 'lineno', 1)}: {reason}")
    more = len(problems) - MAX_FINDINGS
    return problems if more <= 0 else [*problems[:MAX_FINDINGS], f"and {more} more of such"]


def _formats_plainly(called):
    """Whether this is `"…{}…{name:>3}…".format`: a field such as `{0.__globals__}` or `{0[key]}` would read attributes."""
    text = called.value if isinstance(called, ast.Attribute) and called.attr == "format" else None
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return False
    templates = [text.value]
    try:
        while templates:
            for _, field, spec, _ in string.Formatter().parse(templates.pop()):
                if field and not field.isidentifier() and not field.isdecimal():
                    return False
                templates += [spec] if spec else []
    except ValueError:
        return False
    return True


def _check_node(node, plain):
    if isinstance(node, ast.Import):
        yield from (f"imports {alias.name}" for alias in node.names if alias.name not in MODULES)
    elif isinstance(node, ast.ImportFrom) and node.module != FUTURE:
        known = MODULES.get(node.module or "", (None, ()))[1] if not node.level else ()
        yield from (f"imports {node.module}.{alias.name}" for alias in node.names if alias.name not in known)
    elif isinstance(node, ast.Attribute | ast.MatchClass):
        names = [node.attr] if isinstance(node, ast.Attribute) else node.kwd_attrs
        yield from (f"reaches for .{name}" for name in names if name.startswith("_") or name in FRAMES)
        if not plain:
            yield from (f"uses .{name} other than with a constant text of plain fields" for name in names if name in FORMATS)
    elif isinstance(node, ast.Name) and node.id in REFUSED:
        yield f"uses {node.id}"
    if not isinstance(node, ast.Constant | ast.ImportFrom | ast.Attribute | ast.MatchClass):
        # Not only names: a pattern, an import or an except clause binds one too, for example in the body of a class.
        fields = [value for _, value in ast.iter_fields(node)]
        names = [name for value in fields for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]
        allowed = METHODS if isinstance(node, ast.FunctionDef) else HARMLESS_DUNDERS
        yield from (f"uses {name}" for name in names if name.startswith("__") and name not in allowed and name not in REFUSED)


def make_namespace():
    """Globals for a draft: allowed builtins, and an import that offers only allowed attributes."""
    modules = {}
    for name, (whole, names) in MODULES.items():
        modules[name] = types.ModuleType(name)
        vars(modules[name]).update({each: getattr(whole, each) for each in names if hasattr(whole, each)})
    vars(modules["collections"])["abc"] = modules["collections.abc"]
    future = types.ModuleType(FUTURE)
    vars(future)["annotations"] = None

    def import_allowed(name, globals=None, locals=None, fromlist=(), level=0):
        if name == FUTURE:
            return future
        if level or name not in modules:
            raise ImportError(f"a draft may not import {name}")
        return modules[name if fromlist else name.partition(".")[0]]

    real = vars(__import__("builtins"))
    allowed = {name: real[name] for name in BUILTINS if name in real}
    allowed |= {name: value for name, value in real.items() if isinstance(value, type) and issubclass(value, Exception)}
    allowed |= {"__import__": import_allowed, "print": lambda *words, **more: None}
    return {"__builtins__": allowed, "__name__": "draft"}


def set_field(field, name, value):
    """Like `field.name = value`. A dataclass reads the attribute of that name, and puts it into the source of `__init__`."""
    if name == "name" and value is not None and (type(value) is not str or not value.isidentifier() or value[:2] == "__"):
        raise PermissionError("a draft may not name a field other than with a plain name")
    object.__setattr__(field, name, value)


def apply_limits(limits):
    """Set all limits; nothing can be loaded afterwards. Return limit -> whether it is enforced."""
    held = {}
    try:
        import ctypes

        flags = 0x10000000 | 0x40000000  # CLONE_NEWUSER | CLONE_NEWNET
        held["network"] = ctypes.CDLL(None, use_errno=True).unshare(flags) == 0
    except (ImportError, OSError, AttributeError):
        held["network"] = False
    import resource

    for name, value in (("AS", limits["memory"]), ("CPU", limits["cpu_s"]), ("FSIZE", 0), ("CORE", 0), ("NOFILE", 3)):
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
            held[name] = True
        except (AttributeError, ValueError, OSError):
            held[name] = False

    def refuse(event, arguments):
        if event.startswith(DENIED):
            raise PermissionError(f"a draft may not do this: {event}")

    sys.addaudithook(refuse)
    return held


def describe_state(draft, state):
    """[state, block, done]"""
    if not isinstance(state, dict):
        raise TypeError(f"the state must be a dict, and is {type(state).__name__}")
    if json.loads(json.dumps(state, allow_nan=False)) != state:
        raise TypeError("the state must be plain JSON: text keys, and lists instead of tuples and sets")
    block, done = draft["render"](copy.deepcopy(state)), draft["done"](copy.deepcopy(state))
    if not isinstance(block, str):
        raise TypeError(f"render must return text, and returned {type(block).__name__}")
    if not isinstance(done, bool):
        raise TypeError(f"done must return True or False, and returned {type(done).__name__}")
    return [state, block, done]


def answer(draft, call):
    """`start`: [state, block, done]; `events`: names of the rules that apply to a step; `update`: both in one list."""
    if call["call"] == "start":
        return describe_state(draft, draft["start"](call["goal"], call["saw"]))
    before, action, saw = call["state"], call["action"], call["saw"]
    update = call["call"] == "update"
    after = draft["update"](copy.deepcopy(before), action, saw) if update else call["after"]
    described = describe_state(draft, after) if update else []
    events = draft["events"](copy.deepcopy(before), action, saw, copy.deepcopy(after))
    if not isinstance(events, (list, tuple)) or not all(isinstance(event, str) for event in events):
        raise TypeError("events must return a list of names of rules")
    return [*described, list(events)] if update else list(events)


def load(source, kind):
    """Execute the source and return its namespace. Missing functions and constants are errors."""
    draft, (functions, constants) = make_namespace(), PARTS[kind]
    exec(compile(source, "<draft>", "exec"), draft)
    lacking = [name for name in functions if not callable(draft.get(name))] + [name for name in constants if name not in draft]
    if lacking:
        raise NameError(f"it has no {', '.join(lacking)}")
    return draft


def describe_error(error):
    """The error and the line of the draft that raised it."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<draft"):
            line = trace.tb_lineno
        trace = trace.tb_next
    at = f" (line {line} of the draft)" if line else ""
    return f"{type(error).__name__}: {error}"[:500] + at


def main():
    lines, out = sys.stdin.buffer, sys.stdout

    def send(document):
        out.write(json.dumps(document, allow_nan=False) + "\n")
        out.flush()

    begin = json.loads(lines.readline())
    held = apply_limits(begin["limits"])
    problems = findings(begin["source"])
    if problems or not begin["run"]:
        send({"findings": problems, "held": held})
        return
    dataclasses.Field.__setattr__ = set_field  # type: ignore[method-assign]
    try:
        draft = load(begin["source"], begin["kind"])
        send({"findings": [], "held": held, "constants": {name: draft[name] for name in PARTS[begin["kind"]][1]}})
    except BaseException as error:
        send({"findings": [], "held": held, "error": describe_error(error)})
        return
    for line in lines:
        try:
            send({"answer": answer(draft, json.loads(line))})
        except BaseException as error:
            send({"error": describe_error(error)})


if __name__ == "__main__":
    main()
