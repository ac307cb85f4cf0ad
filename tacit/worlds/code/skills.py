"""Skill alphabet, handbook, failure reasons and hindsight.

Nine atomic skills, by the tool and what it is used on:

    SEARCH                       grep, find, ls and the like, or a view of a directory
    VIEW-SOURCE, VIEW-TEST       a file of the package, or one of its tests
    EDIT-SOURCE, EDIT-TEST       str_replace, insert or create
    UNDO, TEST, RUN, SUBMIT      RUN is any other shell command

Every readable call is projected, even if refused.
"""

from __future__ import annotations

import re

from tacit.core.hindsight import Skills, critical_steps, most_repeated
from tacit.core.types import StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.code.expert import Oracle, find_hunks
from tacit.worlds.code.tasks import record_of
from tacit.worlds.code.tools import BASH, SUBMIT, check_action
from tacit.worlds.code.tracker import RepairTracker

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


def project(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(found for step in trajectory.steps if (found := skill(step.action)))


ALPHABET = Alphabet(SKILLS, project, operators=("VIEW", "EDIT"))

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
_TRACKER = RepairTracker()


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: the world's label after a submission (`tests_fail`, `tests_broken`, `no_change`, `forged`, a
    limit), `not_submitted` at the step limit, else the stop reason."""
    if trajectory.stop is StopReason.STEP_LIMIT:
        return "not_submitted"
    return trajectory.end_label or str(trajectory.stop)


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success the edits that worked; after a failure where the defect is."""
    steps = critical_steps(trajectory, Oracle(trajectory.task), _TRACKER)
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
