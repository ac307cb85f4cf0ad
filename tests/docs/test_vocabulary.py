"""Retired names and phrases stay out of code and docs. docs/glossary.md has the terms to use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {
    "Advised", "Aside", "Attended", "BatchDesk", "Bodies", "ByRule", "Carried", "ChatDesk", "ChunkRoom", "Collected",
    "Counsel", "Course", "Desk", "DeskMaker", "DeskSampler", "Fence", "FencedDraft", "Gated", "Gathering", "GenericTable",
    "Halves", "Handover", "HandsOver", "Hang", "Happening", "InPlace", "Keeper", "Laboratory", "LeanDecoder", "Learning",
    "LlamaTable", "LocalDesk", "Look", "Malformed", "Moment", "Newcomers", "Onlooker", "Over", "Patience", "Pieces",
    "Playground", "Practice", "Punctual", "RaggedDecoder", "Readings", "Rival", "Rotated", "Rows", "Scribe", "Seat",
    "Seats", "ServerDesk", "Sheet", "Sitting", "Spans", "Speaking", "Stage", "Straying", "Table", "TakesOver", "Tally",
    "Taught", "Telling", "ThinkingWorlds", "TinkerDesk", "Together", "Toolbox", "TrainedWeights", "Watched", "Ways", "Wish",
    "Wishes", "Workplace", "Worth",
}  # fmt: skip
FUNCTIONS = {
    "anchored", "answers_of", "as_they_come", "asked", "beforehand", "borrow", "by_head", "carry_out", "doubts", "fitted",
    "gated", "give_back", "given_by", "going_on", "ground_of", "hand_back", "handed", "happened_to", "in_time", "is_crowded",
    "is_in_pieces", "known_base", "known_of", "leave_the_grid", "lend", "let", "let_go", "let_through", "make_room",
    "normed", "off_the_grid", "open_desk", "patiently", "pulled", "ran_out", "relabelled", "rotated", "runs_below",
    "said_by", "scribed", "seated", "share_out", "sit_down", "stranger", "take_apart", "take_back", "take_down", "taken",
    "tell_now", "told", "turned", "untellable", "what_is_there",
}  # fmt: skip
VARIABLES = {"asked", "begun", "belied", "handed", "pulled", "said", "seated", "shut", "sought", "spoken", "stood", "told"}
PACKAGE_VARIABLES = VARIABLES | {"found", "given", "made", "shown"}
PHRASES = (
    r"rows? that (?:is|are) over", r"read along", r"not shown apart", r"those who (?:write|sit|stay|wait)", r"newcomers?",
    r"at the (?:desk|table)", r"practis(?:e|es|ed|ing)", r"has never been told", r"the house's own",
    r"whoever (?:asks|plays|reads)", r"is told so", r"as it were", r"gone back to",
)  # fmt: skip
PAGES = [
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "archive" not in path.parts
]


def read_sources(*folders: str):
    """(name, text) of every Python file of these folders, without the repositories used as repair tasks."""
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        if "packaged" not in path.parts:
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def find_retired_names(text: str, variables: set[str] = VARIABLES):
    """(line, name) of retired classes, functions, variables, attributes and parameters."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            name, retired = node.name, CLASSES
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name, retired = node.name.strip("_"), FUNCTIONS
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name, retired = node.id, CLASSES | variables
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name, retired = node.attr, variables
        elif isinstance(node, ast.arg):
            name, retired = node.arg, variables
        elif isinstance(node, ast.alias):
            name, retired = node.asname or "", CLASSES | FUNCTIONS | variables
        else:
            continue
        if name in retired:
            yield getattr(node, "lineno", 0), name


def test_retired_names_are_found():
    text = """
from module import function as told
Seat = int
class Desk:
    begun = 1

    def _pulled(self, said):
        self.spoken = [asked for asked in said]
"""
    assert {name for _, name in find_retired_names(text)} == {
        "told", "Seat", "Desk", "begun", "pulled", "said", "spoken", "asked"
    }  # fmt: skip


def test_code_has_no_retired_names():
    retired = [
        f"{path}:{line} {name}"
        for folders, variables in ((["tacit"], PACKAGE_VARIABLES), (["tests", "benchmarks", "examples"], VARIABLES))
        for path, text in read_sources(*folders)
        for line, name in find_retired_names(text, variables)
    ]
    assert not retired, "\n".join(retired)


def test_code_has_no_retired_phrases():
    """In docstrings, comments and messages."""
    found = []
    for path, text in read_sources("tacit"):
        text = text.replace('"practised"', '"rl"')  # a key of module.json that released modules contain
        for phrase in PHRASES:
            for match in re.finditer(rf"\b{phrase}\b", text, re.IGNORECASE):
                found.append(f"{path}:{text.count(chr(10), 0, match.start()) + 1} {match.group(0)}")
    assert not found, "\n".join(found)


def test_docs_have_no_retired_phrases():
    found = []
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        matches = (match for phrase in PHRASES for match in re.finditer(rf"\b{phrase}\b", text, re.IGNORECASE))
        found += [f"{page.relative_to(ROOT)}: {match.group(0)}" for match in matches]
    assert not found, "\n".join(found)


def test_docs_have_no_number_dense_prose():
    """A line of prose with more than twelve numbers should be a table."""
    dense = [
        f"{page.relative_to(ROOT)}:{number}: {line[:80]}"
        for page in PAGES
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        if not line.lstrip().startswith(("|", "`", "    ")) and len(re.findall(r"(?<![\w.])\d[\d.,]*", line)) > 12
    ]
    assert not dense, "\n".join(dense)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
