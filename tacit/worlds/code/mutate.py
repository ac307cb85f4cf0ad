"""Single-site mutations of Python source, as edits of the text: formatting and comments stay as they are.

    comparison         < to <= or >, == to !=, is to is not, in to not in, and back
    operator           + to -, * to +, // to /, …, also in augmented assignments
    boolean            and to or, or to and
    negation           if c to if not c, not c to c
    off_by_one         an integer plus or minus one
    lost_return        return value to value
    wrong_variable     another parameter or local variable of the function
    swapped_arguments  f(a, b) to f(b, a)

Only code inside functions is changed: annotations, decorators, docstrings and f-strings are left alone.
"""

from __future__ import annotations

import ast
import itertools
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tacit.worlds.code.tasks import Edit

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
LOOSE = (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)  # expressions that `not` would tear apart
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutation:
    kind: str
    edit: Edit
    function: str  # qualified name of the function it is in
    line: int  # first line of that function, decorators included: how Python's tracing knows it

    @property
    def site(self) -> str:
        return f"{self.edit.path}:{self.function}"


class _Text:
    """Source text, with positions of the syntax tree turned into offsets."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.lines = source.encode().splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line.decode()))

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1][:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno or 0, node.end_col_offset or 0)

    def of(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def edit(self, start: int, end: int, after: str) -> Edit:
        return Edit(self.path, start, end, self.source[start:end], after)

    def between(self, left: ast.expr, right: ast.expr, pattern: str) -> tuple[int, int] | None:
        """Where the operator stands between two expressions: beside it there are only parentheses, blanks and comments."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = re.sub(r"#[^\n]*", lambda found: " " * len(found[0]), self.source[start:end])
        found = re.search(pattern, gap)
        return (start + found.start(), start + found.end()) if found else None


def find_mutations(path: str, source: str) -> list[Mutation]:
    """All mutations of a file, in the order of its text; a few may not compile. Raises SyntaxError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
        text = _Text(path, source)
        found = []
        for function, name in _functions(tree):
            line = min([function.lineno, *(node.lineno for node in function.decorator_list)])
            nodes = list(_walk(function))
            names = _local_names(function, nodes)
            for node in nodes:
                found += [Mutation(kind, edit, name, line) for kind, edit in _mutate(text, node, names)]
    return sorted(set(found), key=lambda each: (each.edit.start, each.kind, each.edit.after))


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[Function, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if isinstance(child, Function):
                yield child, name
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, prefix)


def _walk(function: Function) -> Iterator[ast.AST]:
    """Nodes of the function's own body: not of inner functions and classes, annotations, f-strings or constants of text."""
    queue: list[ast.AST] = list(function.body)
    while queue:
        node = queue.pop()
        if isinstance(node, Function | ast.ClassDef | ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        yield node
        if isinstance(node, ast.AnnAssign):
            queue += [part for part in (node.target, node.value) if part is not None]
        else:
            queue += ast.iter_child_nodes(node)


def _local_names(function: Function, nodes: Sequence[ast.AST]) -> list[str]:
    arguments = function.args
    given = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return sorted({*given, *stored} - {"self", "cls", "_"})


def _mutate(text: _Text, node: ast.AST, names: Sequence[str]) -> Iterator[tuple[str, Edit]]:
    match node:
        case ast.Compare():
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                pattern, others = COMPARISONS[type(operator)]
                place = text.between(left, right, pattern)
                for other in others:
                    if place:
                        yield "comparison", text.edit(*place, other)
        case ast.BinOp() if type(node.op) in OPERATORS and not _is_text(node.left):
            before, after = OPERATORS[type(node.op)]
            place = text.between(node.left, node.right, re.escape(before))
            if place:
                yield "operator", text.edit(*place, after)
        case ast.AugAssign() if type(node.op) in OPERATORS and not _is_text(node.value):
            before, after = OPERATORS[type(node.op)]
            place = text.between(node.target, node.value, re.escape(before) + "=")
            if place:
                yield "operator", text.edit(*place, f"{after}=")
        case ast.BoolOp():
            before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in itertools.pairwise(node.values):
                place = text.between(left, right, rf"\b{before}\b")
                if place:
                    yield "boolean", text.edit(*place, after)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Constant):
            yield "negation", _negate(text, test)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield "negation", _negate(text, test)
        case ast.Constant(value=int() as value) if not isinstance(value, bool) and text.of(node).isdigit():
            for number in (value + 1, value - 1) if value else (1,):
                yield "off_by_one", text.edit(*text.span(node), str(number))
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            start = text.span(node)[0]
            yield "lost_return", text.edit(start, start + len("return") + (text.source[start + len("return")] == " "), "")
        case ast.Name(ctx=ast.Load()) if node.id in names and len(names) > 1:
            different = [name for name in names if name != node.id]
            choice = zlib.crc32(f"{text.path}:{node.lineno}:{node.col_offset}".encode()) % len(different)
            yield "wrong_variable", text.edit(*text.span(node), different[choice])
        case ast.Call(args=arguments) if len(arguments) > 1:
            for left, right in itertools.pairwise(arguments):
                (start, gap), (gap_end, end) = text.span(left), text.span(right)
                if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred) and text.of(left) != text.of(right):
                    swapped = text.of(right) + text.source[gap:gap_end] + text.of(left)
                    yield "swapped_arguments", text.edit(start, end, swapped)


def _negate(text: _Text, test: ast.expr) -> Edit:
    start, end = text.span(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        operand = text.of(test.operand)
        return text.edit(start, end, f"({operand})" if isinstance(test.operand, LOOSE) else operand)
    return text.edit(start, end, f"not ({text.of(test)})" if isinstance(test, LOOSE) else f"not {text.of(test)}")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
