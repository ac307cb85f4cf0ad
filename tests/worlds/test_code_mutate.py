"""Code mutations: the edit each kind makes, and that formatting is kept."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap

import pytest

from tacit.worlds.code.tasks import KINDS, apply_edits, find_mutations

SOURCE = '''"""Text of 3 < 4 and so on."""
LIMIT = 10  # module level stays


def pick(items, low, high=2):
    # keep 1 < 2 in comments
    if low < high and not items:
        return items[low : high - 1]
    total = low  +  (  # ä: two bytes
        high
    )
    total += 1
    for item in items:
        if item is not None and (f"{low + 1}"):
            total = max(low, high)
    return total


class Box:
    def size(self, a: int = 3) -> int:
        return a // 2 if a in (1, 2) else 0
'''


def after(kind: str, source: str = SOURCE) -> set[str]:
    return {
        source[source.rfind("\n", 0, each.edit.start) + 1 : each.edit.start].strip() + "|" + each.edit.after
        for each in find_mutations("box.py", source)
        if each.kind == kind
    }


@pytest.mark.parametrize(
    ("kind", "expected"),
    {
        "comparison": {"if low|<=", "if low|>", "if item|is", "return a // 2 if a|not in"},
        "operator": {"return items[low : high|+", "total = low  +  (".replace("+  (", "|-"), "total|-=", "return a|/"},
        "boolean": {"if low < high|or", "if item is not None|or"},
        "negation": {
            "if|not (low < high and not items)",
            'if|not (item is not None and (f"{low + 1}"))',
            "return a // 2 if|not a in (1, 2)",
        },
        "lost_return": {"|"},
        "swapped_arguments": {"total = max(|high, low"},
    }.items(),
)
def test_mutation_kind_makes_expected_edits(kind, expected):
    assert {line.replace("  |", "|").replace(" |", "|") for line in after(kind)} == {
        line.replace("  |", "|") for line in expected
    }


def test_off_by_one_changes_only_literals_in_function_bodies():
    changed = {(each.edit.before, each.edit.after) for each in find_mutations("box.py", SOURCE) if each.kind == "off_by_one"}
    assert changed == {("1", "2"), ("1", "0"), ("2", "3"), ("2", "1"), ("0", "1")}


def test_wrong_variable_comes_from_the_same_function():
    found = [each for each in find_mutations("box.py", SOURCE) if each.kind == "wrong_variable"]
    assert found and all(each.function == "pick" for each in found), "`size` has one variable only"
    names = {"items", "low", "high", "total", "item"}
    assert all(each.edit.before != each.edit.after and {each.edit.before, each.edit.after} <= names for each in found)


@pytest.mark.parametrize("source", [SOURCE, textwrap.dedent(inspect.getsource(textwrap))], ids=["box", "textwrap"])
def test_mutation_changes_one_place_and_still_parses(source):
    found = find_mutations("box.py", source)
    assert {each.kind for each in found} <= set(KINDS)
    whole = ast.dump(ast.parse(source))
    for each in found[:: 1 + len(found) // 60]:
        broken = apply_edits(source, [each.edit])
        assert ast.dump(ast.parse(broken)) != whole, each
        assert broken[: each.edit.start] + each.edit.before + broken[each.edit.start + len(each.edit.after) :] == source


def test_site_names_function_and_first_line():
    decorated = "class A:\n    @property\n    def b(self):\n        return 1 + 1\n"
    [each] = [each for each in find_mutations("a.py", decorated) if each.kind == "operator"]
    assert (each.site, each.line) == ("a.py:A.b", 2), "Python counts a function from its first decorator"


def test_mutations_match_pinned_digest():
    text = json.dumps([[each.kind, each.edit.start, each.edit.after] for each in find_mutations("box.py", SOURCE)])
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "a2e40fcffd4d"


def test_line_endings_are_kept():
    source = SOURCE.replace("\n", "\r\n")
    pairs = zip(find_mutations("box.py", source), find_mutations("box.py", SOURCE), strict=True)
    for dos, unix in pairs:
        assert apply_edits(source, [dos.edit]).replace("\r\n", "\n") == apply_edits(SOURCE, [unix.edit])
