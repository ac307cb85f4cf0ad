"""Retired words stay retired: names of the code, and phrases of the docs (docs/glossary.md has the terms to use)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLASSES = set(
    """
    Desk LocalDesk ServerDesk ChatDesk TinkerDesk BatchDesk DeskSampler DeskMaker Table LlamaTable GenericTable Newcomers Seats Rows
    Readings Look ChunkRoom Over Onlooker Tally Moment Together Toolbox Playground Practice Course Collected Attended Scribe Straying
    Worth Speaking Keeper Patience TrainedWeights Learning LeanDecoder RaggedDecoder Ways Pieces Spans Gated Rotated Attended Punctual
    InPlace ThinkingWorlds Hang Stage Workplace Happening Telling Halves Counsel Malformed Handover HandsOver TakesOver Gathering
    Bodies Aside Fence FencedDraft Carried Taught Rival Wishes Watched Laboratory Seat Wish Sheet Sitting Advised ByRule
    """.split()
)
FUNCTIONS = set(
    """
    told asked taken seated pulled let let_go let_through take_down sit_down open_desk doubts fitted carry_out give_back make_room
    is_crowded is_in_pieces ran_out patiently off_the_grid leave_the_grid handed turned normed rotated gated by_head happened_to
    what_is_there runs_below as_they_come answers_of in_time going_on share_out scribed relabelled untellable stranger
    said_by anchored ground_of known_base known_of beforehand lend take_back hand_back borrow take_apart
    """.split()
)
PHRASES = (
    r"rows? that (?:is|are) over", r"read along", r"not shown apart", r"those who (?:write|sit|stay|wait)", r"newcomers?",
    r"at the (?:desk|table)", r"practis(?:e|es|ed|ing)", r"has never been told", r"the house's own", r"whoever (?:asks|plays|reads)",
    r"is told so", r"as it were", r"gone back to",
)  # fmt: skip
PAGES = [
    path
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "archive" not in path.parts
]


def test_names_of_the_code():
    found = []
    for path in sorted((ROOT / "tacit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name in CLASSES:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} class {node.name}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.strip("_") in FUNCTIONS:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} def {node.name}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_phrases_of_the_docs(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = [match.group(0) for phrase in PHRASES for match in re.finditer(rf"\b{phrase}\b", text)]
    assert not found, found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_numbers_are_in_tables(page):
    """A line of prose with more than twelve numbers wants to be a table."""
    lines = page.read_text(encoding="utf-8").splitlines()
    dense = [
        f"{number}: {line[:80]}"
        for number, line in enumerate(lines, 1)
        if not line.lstrip().startswith(("|", "`", "    ")) and len(re.findall(r"(?<![\w.])\d[\d.,]*", line)) > 12
    ]
    assert not dense, "\n".join(dense)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
