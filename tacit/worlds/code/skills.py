"""Experts, the progress tracker, the skill alphabet, the handbook, failure reasons and hindsight.

    phase      find -> mend (a source file was viewed) -> check (it was edited) -> hand_in (tests pass) -> done
    progress   +1.0 for a solved issue, +0.2 for each phase reached for the first time, +0.1 for fewer failing tests
    error      0.3 for an unreadable action, 0.2 for a refused one, 0.1 for a repeated one, 0.1 for more failing tests

Values follow Table 6 of the constant-context paper; errors are positive. Nine atomic skills, by tool and
kind of file:

    SEARCH                       grep, find, ls and the like, or a view of a directory
    VIEW-SOURCE, VIEW-TEST       a file of the package, or one of its tests
    EDIT-SOURCE, EDIT-TEST       str_replace, insert or create
    UNDO, TEST, RUN, SUBMIT      RUN is any other shell command

Every readable call has a skill, even if refused.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from random import Random

from tacit.core.chat import Call
from tacit.core.hindsight import RuleTracker, critical_steps, most_repeated
from tacit.core.types import Observation, Skills, StopReason, Task, Trajectory, Transition
from tacit.core.world import Alphabet, ByReading
from tacit.sandbox.client import AT
from tacit.worlds.code.tasks import (
    HELD_KINDS,
    Edit,
    Record,
    TaskFolder,
    broken_files,
    find_mutations,
    read_source,
    record_of,
)
from tacit.worlds.code.tools import BASH, EDITOR, SUBMIT, check_action, read_line, shown_lines, write_line
from tacit.worlds.code.world import read_pytest

AROUND = 6  # lines shown before and after a defect
REFUSED = 1 / 3  # share of the tasks, where this is possible, in which `Search` names a wrong line first
SHOWN_LINES = 25  # lines after its first that `Search` views of a function, if that shows the defect
TRIES = 15  # candidates that `Rule` tries; each takes three steps


@dataclass(frozen=True)
class Hunk:
    """One defect: lines of the broken file, and the original lines."""

    path: str
    first: int
    last: int  # first and last line in the broken file, counted from 1
    broken: tuple[str, ...]
    original: tuple[str, ...]  # both with one line of context before and after
    edit: str  # the action that fixes it

    @property
    def view(self) -> str:
        return f"view {self.path} {max(1, self.first - AROUND)} {self.last + AROUND}"


def replace_lines(path: str, text: str, first: int, last: int, new: list[str]) -> str:
    """A `str_replace` of lines [first, last) (counted from 0), with enough lines above to make the old text unique."""
    lines, top = text.split("\n"), first
    if first == last:  # an insertion: include the next line
        last = min(len(lines), last + 1)
        new = [*new, *lines[first:last]]
    while True:
        old = "\n".join(lines[top:last])
        replacement = "\n".join([*lines[top:first], *new])
        bare = old.lstrip(" ")
        if text.count(bare) == 1 and replacement.startswith(old[: len(old) - len(bare)]):
            old, replacement = bare, replacement[len(old) - len(bare) :]
        if text.count(old) == 1 or top == 0:
            return write_line(Call(EDITOR, {"command": "str_replace", "path": path, "old_str": old, "new_str": replacement}))
        top -= 1


@lru_cache(maxsize=512)
def find_hunks(record: Record, folder: TaskFolder) -> tuple[Hunk, ...]:
    hunks = []
    for path, text in broken_files(record, folder.tree(record)).items():
        whole = read_source(folder.tree(record) / path)
        broken, original = text.removesuffix("\n").split("\n"), whole.removesuffix("\n").split("\n")
        for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, broken, original, autojunk=False).get_opcodes():
            if kind != "equal":
                edit = replace_lines(path, text, i1, i2, original[j1:j2])
                region = tuple(broken[max(0, i1 - 1) : i2 + 1]), tuple(original[max(0, j1 - 1) : j2 + 1])
                hunks.append(Hunk(path, i1 + 1, i2, *region, edit))
    return tuple(hunks)


class Oracle(ByReading):
    """Knows the original source: views each defect, fixes it, runs the tests, submits. It depends only on the observation, so
    it can advise in any episode."""

    def __init__(self, task: Task) -> None:
        record, folder = record_of(task)
        self._hunks = find_hunks(record, folder)
        self._tests = "" if task.data.get("tests") == "hidden" else " ".join(record.test_files)

    def act(self, observation: Observation) -> str:
        if re.search(r"\d passed", observation.text) and "[exit status 0]" in observation.text:
            return "submit"
        path, lines_by_number = shown_lines(observation.text)
        lines = list(lines_by_number.values())
        here = [hunk for hunk in self._hunks if hunk.path == path]
        for hunk in here:
            if _contains(lines, hunk.broken):
                return hunk.edit
        mended = [number for number, hunk in enumerate(self._hunks) if hunk in here and _contains(lines, hunk.original)]
        if not mended:
            first = self._hunks[0]
            lost = lines_by_number and here and first.view == f"view {path} {min(lines_by_number)} {max(lines_by_number)}"
            return f"view {first.path}" if lost else first.view
        following = max(mended) + 1
        if following < len(self._hunks):
            return self._hunks[following].view
        return f"bash pytest -q {self._tests}" if self._tests else "submit"


def _contains(lines: list[str], region: tuple[str, ...]) -> bool:
    size = len(region)
    return any(tuple(lines[start : start + size]) == region for start in range(len(lines) - size + 1))


def line_action(text: str, edit: Edit) -> str:
    """A `str_replace` in one line, with enough neighboring words to make the old text unique there; of whole lines if the edit
    spans several."""
    if "\n" in edit.before + edit.after:
        return whole_line_action(text, edit)
    top, bottom = line_bounds(text, edit)
    first, last = edit.start, edit.end
    while text[top:bottom].count(text[first:last]) != 1 or not text[first:last].strip():
        if last < bottom:
            last = _WORD.match(text, last).end()  # type: ignore[union-attr]
        else:
            first -= 1
    fields = {"command": "str_replace", "path": edit.path, "line": str(text[: edit.start].count("\n") + 1)}
    new = text[first : edit.start] + edit.after + text[edit.end : last]
    return write_line(Call(EDITOR, {**fields, "old_str": text[first:last], "new_str": new}))


def whole_line_action(text: str, edit: Edit) -> str:
    """A `str_replace` of the lines that the edit touches."""
    top, bottom = line_bounds(text, edit)
    lines = (text[top : edit.start] + edit.after + text[edit.end : bottom]).split("\n")
    return replace_lines(edit.path, text, text[: edit.start].count("\n"), text[: edit.end].count("\n") + 1, lines)


def line_bounds(text: str, edit: Edit) -> tuple[int, int]:
    """Where the first line of an edit begins, and where its last one ends."""
    end = text.find("\n", edit.end)
    return text.rfind("\n", 0, edit.start) + 1, end if end >= 0 else len(text)


_WORD = re.compile(r" *(\w+|[^\w\s]|$)")


def broken_functions(record: Record, folder: TaskFolder) -> list[str]:
    """For each edit, the name of the last function that starts before it."""
    before = [read_source(folder.tree(record) / edit.path)[: edit.start] for edit in record.edits]
    return [next(reversed(re.findall(r"def (\w+)\(", text)), "") for text in before]


def locate_defects(task: Task) -> str:
    """A sentence for the issue that names the functions with defects, which makes tasks easier."""
    record, folder = record_of(task)
    functions = broken_functions(record, folder)
    places = [f"{function} in {edit.path}" for function, edit in zip(functions, record.edits, strict=True)]
    return f"The cause is in {' and in '.join(dict.fromkeys(places))}."


def show_defects(task: Task) -> str:
    """For the issue: the sentence of `locate_defects`, and the source of each function with a defect. The easiest tasks."""
    record, folder = record_of(task)
    tree, sources = folder.tree(record), []
    broken = broken_files(record, tree)
    for repair in record.repairs:
        text = broken[repair.path]
        line, functions = text[: repair.start].count("\n") + 1, []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
                functions.append((node.lineno, node.end_lineno))
        first, last = min(functions, default=(max(1, line - AROUND), line + AROUND))  # the outermost; else lines nearby
        source = "\n".join(text.split("\n")[first - 1 : last])
        sources.append(f"{AT}/{repair.path}, lines {first} to {last}:\n\n{source}")
    return "\n\n".join([locate_defects(task), *dict.fromkeys(sources)])


class Search(ByReading):
    """Knows only the function and the right edit: greps for the function, views it, edits part of a line, tests, and undoes
    edits that do not help. Makes up to three wrong edits first, so that a small policy that imitates it learns to retry: up to
    two that do not help, and in some tasks one that is refused, because it names the wrong line."""

    def __init__(self, task: Task) -> None:
        self._record, folder = record_of(task)
        self._texts = broken_files(self._record, folder.tree(self._record))
        self.repairs = []  # (path, number and text of the broken line, function, action)
        for repair, function in zip(self._record.repairs, broken_functions(self._record, folder), strict=True):
            text = self._texts[repair.path]
            number = text[: repair.start].count("\n") + 1
            self.repairs.append((repair.path, number, text.split("\n")[number - 1], function, line_action(text, repair)))
        self._wrong = self._choose_wrong(Random(task.id))

    def _choose_wrong(self, rng: Random) -> list[str]:
        if len(self.repairs) > 1:
            return []
        [(path, number, *_, right)] = self.repairs
        text = self._texts[path]
        by_kind: dict[str, list[str]] = {}
        for each in find_mutations(path, text):
            if abs(text[: each.edit.start].count("\n") + 1 - number) <= AROUND and each.kind not in HELD_KINDS:
                by_kind.setdefault(each.kind, []).append(line_action(text, each.edit))
        kinds = rng.sample(sorted(by_kind), min(rng.randrange(3), len(by_kind)))
        wrong = [action for kind in kinds for action in [rng.choice(by_kind[kind])] if action != right]
        refused = right.replace(f"{path}:{number} ", f"{path}:{number + 1} ", 1)  # the right edit in the line below
        if rng.random() < REFUSED and refused != right:
            old = str(read_line(refused).arguments["old_str"])
            wrong += [refused] if old not in [*text.split("\n"), ""][number] else []
        return wrong

    @property
    def actions(self) -> list[str]:
        """all actions that it may take, except tests and views"""
        useful = [action for _, _, _, function, right in self.repairs for action in (self._grep(function), right)]
        return [*useful, *self._wrong, f"undo_edit {self.repairs[0][0]}"]

    def happened(self, action: str) -> None:
        """In another agent's episode, it plans no wrong edits of its own."""
        self._wrong = []

    def act(self, observation: Observation) -> str:
        text = observation.text
        counts = _COUNTS.search(text) if "[exit status" in text else None
        if text.endswith(" limit]") or (counts and "[exit status 0]" not in text):
            return f"undo_edit {self.repairs[0][0]}"
        if counts and counts[2]:
            return "submit"
        path, lines_by_number = shown_lines(text)
        here = [repair for repair in self.repairs if repair[0] == path and repair[1] in lines_by_number]
        left = [repair for repair in here if lines_by_number[repair[1]] == repair[2]]
        if text.startswith("Edited"):
            following = self.repairs.index(here[-1]) + 1 if here and not left else 0
            done = following in (0, len(self.repairs)) and not (left and len(self.repairs) > 1)
            return "bash pytest -q" if done else self._grep((left or self.repairs[following:])[0][3])
        if left:
            return self._wrong.pop() if self._wrong else left[0][4]
        for path, number, _, function, _ in self.repairs:
            definitions = [int(at) for at in re.findall(rf"^{re.escape(path)}:(\d+):\s*def {function}\(", text, re.MULTILINE)]
            if near := [at for at in definitions if at <= number]:
                first = max(near)
                return f"view {path} {first} {first + SHOWN_LINES if number <= first + SHOWN_LINES else -1}"
        return self._grep(self.repairs[0][3])

    def _grep(self, function: str) -> str:
        return f'bash grep -rn "def {function}(" *'


class Rule:
    """Tries single mutations, nearest to the traceback first, until the shown tests pass. Uses only what an agent can see: the
    broken sources and the tests' output."""

    def __init__(self, task: Task) -> None:
        self._record, folder = record_of(task)
        self._sources = open_sources(self._record, folder)
        self._tests = f"bash pytest -q --tb=short {' '.join(self._record.test_files)}"
        self._hidden = task.data.get("tests") == "hidden"
        self._seen = ""
        self._plan = self._play()

    def act(self, observation: Observation) -> str:
        self._seen = observation.text
        return next(self._plan)

    def _play(self) -> Iterator[str]:
        if not self._hidden:
            yield self._tests
            candidates = [] if "[exit status 0]" in self._seen else self._rank(self._seen)
            for path, action in candidates:
                yield action
                if self._seen.startswith("ERROR"):
                    continue
                yield self._tests
                if "[exit status 0]" in self._seen:
                    break
                yield f"undo_edit {path}"
        yield from repeat("submit")

    def _rank(self, output: str) -> list[tuple[str, str]]:
        """Mutations by distance to the traceback: lines that it names, then functions that it names, then the rest."""
        named = {(path, int(line)) for path, line in re.findall(r"^(\S+\.py):(\d+): ", output, re.MULTILINE)}
        words = set(re.findall(r"\w+", output))
        ranked = []
        for path, text in self._sources.items():
            for mutation in find_mutations(path, text):
                line = text[: mutation.edit.start].count("\n") + 1
                near = min((abs(line - at) for where, at in named if where == path), default=1000)
                is_named = mutation.function.rpartition(".")[2] in words
                ranked.append((near > 0, not is_named, near, path, mutation.edit.start, mutation))
        ranked.sort(key=lambda row: row[:5])
        return [(path, whole_line_action(self._sources[path], mutation.edit)) for *_, path, _, mutation in ranked[:TRIES]]


class RandomEdit:
    """Applies one random mutation to a source file, then submits."""

    def __init__(self, task: Task) -> None:
        record, folder = record_of(task)
        choices = [
            (text, each.edit) for path, text in open_sources(record, folder).items() for each in find_mutations(path, text)
        ]
        self._plan = [whole_line_action(*Random(task.id).choice(choices))]

    def act(self, observation: Observation) -> str:
        return self._plan.pop() if self._plan else "submit"


class NoEdit(ByReading):
    """Submits the repository as it is."""

    def __init__(self, task: Task) -> None:
        pass

    def act(self, observation: Observation) -> str:
        return "submit"


def open_sources(record: Record, folder: TaskFolder) -> dict[str, str]:
    """The broken repository's own Python files, without tests."""
    tree, broken = folder.tree(record), broken_files(record, folder.tree(record))
    paths = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*.py"))
    own = [path for path in paths if not re.search(r"(^|/)(tests?/|test_|conftest|setup\.py|docs?/|benchmarks?/)", path)]
    return {path: broken.get(path) or read_source(tree / path) for path in own}


PHASES = ("find", "mend", "check", "hand_in", "done")
SHOWN, LONGEST = 4, 60
BOUND = 1200  # maximum characters of a state block
_COUNTS = re.compile(r"(?:(\d+) failed)?(?:, )?(?:(\d+) passed)?[^\n]* in \d")


@dataclass(frozen=True)
class RepairState:
    viewed: tuple[str, ...] = ()  # the latest `path first-last`, oldest first
    edited: tuple[str, ...] = ()  # the latest edits that were not undone, as actions
    failing: int = -1  # failing tests of the last run; -1 before the first
    passing: int = 0
    fewest: int = -1
    stale: bool = False  # edited since the last test run
    phase: str = "find"
    reached: int = 0  # index of the furthest phase so far
    done: frozenset[str] = frozenset()  # actions since the last change of a file
    fault: str = ""


class RepairTracker(RuleTracker):
    version = "code-1"
    progress = {"subgoal": 1.0, "phase": 0.2, "fewer_failures": 0.1}
    errors = {"unreadable": 0.3, "refused": 0.2, "repeated": 0.1, "more_failures": 0.1}

    def start(self, task: Task, observation: Observation) -> RepairState:
        return RepairState()

    def update(self, state: RepairState, action: str, transition: Transition) -> RepairState:
        call = check_action(action)
        if call is None or not transition.effective:
            return replace(state, fault="refused" if call else "unreadable")
        if transition.done:
            return self._enter(replace(state, fault=""), "done" if transition.success else state.phase)
        text = transition.observation.text
        repeated = "repeated" if action in state.done else ""
        state = replace(state, fault=repeated, done=state.done | {action})
        if call.name == BASH:
            return self._tested(state, call.arguments["command"], text)
        path, lines = shown_lines(text)
        command = call.arguments["command"] if call.name == EDITOR else ""
        if command == "view":
            seen = f"{path} {min(lines)}-{max(lines)}"[:LONGEST] if lines else ""
            viewed = (*(other for other in state.viewed if other != seen), seen)[-SHOWN:] if seen else state.viewed
            return self._enter(replace(state, viewed=viewed), "mend" if path and state.phase == "find" else state.phase)
        if command == "undo_edit":
            return self._enter(replace(state, edited=state.edited[:-1], stale=True, done=frozenset()), "mend")
        summary = action if len(action) <= 2 * LONGEST else f"{action[: 2 * LONGEST - 1]}…"
        edited = (*state.edited, summary)[-SHOWN:]
        return self._enter(replace(state, edited=edited, stale=True, done=frozenset()), "check")

    def _tested(self, state: RepairState, command: str, text: str) -> RepairState:
        counts = _COUNTS.search(text)
        if "pytest" not in command or not counts or not (counts[1] or counts[2]):
            return state
        failing, passing = int(counts[1] or 0), int(counts[2] or 0)
        worse = state.failing >= 0 and failing > state.failing
        fewest = failing if state.fewest < 0 else min(failing, state.fewest)
        tested = replace(state, failing=failing, passing=passing, fewest=fewest, stale=False)
        tested = replace(tested, fault=tested.fault or ("more_failures" if worse else ""))
        whole = read_pytest(command) is not None
        return self._enter(tested, "hand_in" if failing == 0 and whole and state.edited else state.phase)

    def _enter(self, state: RepairState, phase: str) -> RepairState:
        return replace(state, phase=phase, reached=max(state.reached, PHASES.index(phase)))

    def render(self, state: RepairState) -> str:
        lines = [f"phase: {state.phase}"]
        if state.viewed:
            lines.append(f"viewed: {'; '.join(state.viewed)}")
        if state.edited:
            lines.append("edits: " + "; ".join(state.edited))
        if state.failing >= 0:
            stale = ", before the last edit" if state.stale else ""
            lines.append(f"tests: {state.failing} failed, {state.passing} passed{stale}")
        return "\n".join(lines)[:BOUND]

    def count(self, before: RepairState, after: RepairState) -> Mapping[str, float]:
        solved = after.phase == "done" and before.phase != "done"
        fewer = 0 <= after.fewest < before.fewest
        return {"subgoal": solved, "phase": after.reached > before.reached and not solved, "fewer_failures": fewer}


SKILLS = ("SEARCH", "VIEW-SOURCE", "VIEW-TEST", "EDIT-SOURCE", "EDIT-TEST", "UNDO", "TEST", "RUN", "SUBMIT")
_SEARCH = re.compile(r"\s*(cd \S+\s*&&\s*)?(grep|rg|find|ls|tree|cat|head|tail|sed -n|git (log|diff|status|show|grep))\b")


def skill(action: str) -> str | None:
    call = check_action(action)
    if call is None:
        return None
    if call.name == SUBMIT:
        return "SUBMIT"
    command = call.arguments["command"]
    if call.name == BASH:
        return "TEST" if re.search(r"\b(pytest|unittest)\b", command) else "SEARCH" if _SEARCH.match(command) else "RUN"
    if command == "undo_edit":
        return "UNDO"
    path = call.arguments["path"]
    if command == "view" and "." not in path.rpartition("/")[2]:
        return "SEARCH"
    kind = "TEST" if re.search(r"(^|/)(tests?/|test_|conftest)", path) else "SOURCE"
    return f"{'VIEW' if command == 'view' else 'EDIT'}-{kind}"


ALPHABET = Alphabet(SKILLS, lambda trajectory: [skill(step.action) for step in trajectory.steps], operators=("VIEW", "EDIT"))
HANDBOOK = {
    "": (
        "run the failing tests and read where the traceback ends; view that function and compare each line with what the test "
        "expects; change one expression with str_replace; run the tests again, undo what does not help, submit when all pass"
    ),
    "comparison": "look for a comparison that is too strict, too loose or reversed: < and <=, > and >=, == and !=",
    "operator": "look for a wrong arithmetic operator: + and -, * and //, % and //, += and -=",
    "boolean": "look for a condition that joins its parts with the wrong word: and for or, or or for and",
    "negation": "look for a condition that is the opposite of what it must be: a not too many, or one that is missing",
    "off_by_one": "look for a number that is one too large or too small: bounds of range, slices, first and last items",
    "lost_return": "look for a function that computes its result and does not return it: its callers get None",
    "wrong_variable": "look for a name that is not the one meant: another argument or local variable stands in its place",
    "swapped_arguments": "look for a call whose arguments stand in the wrong order",
    "several": "there is more than one defect: mend one, run the tests, and follow the next traceback",
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: the world's label after a submission (`tests_fail`, `tests_broken`, `no_change`, `forged`, a
    limit), `not_submitted` at the step limit, else the stop reason."""
    if trajectory.stop is StopReason.STEP_LIMIT:
        return "not_submitted"
    return trajectory.end_label or str(trajectory.stop)


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its edits; after a failure, the places of the defects."""
    steps = critical_steps(trajectory, Oracle(trajectory.task), RepairTracker())
    summary = trajectory.task.goal.strip().split("\n")[0]
    if trajectory.success:
        edits = [step.action for step in trajectory.steps if step.effective and (skill(step.action) or "").startswith("EDIT")]
        return Skills(f"what solved the issue: {'; '.join(edits)}", steps, f"{summary} Solved.")
    hunks = find_hunks(*record_of(trajectory.task))
    places = ", ".join(f"{hunk.path}, line {hunk.first}" for hunk in hunks)
    repeated = most_repeated(trajectory)
    avoid = f"; avoid {repeated}" if repeated else ""
    return Skills(
        f"the defect is in {places}: view it and compare it with what the test expects{avoid}", steps, f"{summary} Not solved."
    )
