"""Tracker drafts for ALFWorld's `pick` family: a good one, and bad ones that a check must detect."""

from __future__ import annotations

GOOD = """
import re

BOUND = 400
REWARDS = {"progress": {"subgoal": 1.0, "new_place": 0.02}, "error": {"refused": 0.3, "again": 0.1}}
CLAIMS = {"subgoal": 2.0}
LAST = 8


def start(goal, observation):
    words = re.sub(r"[.]", "", goal).split()
    target = words[2] if len(words) > 2 else ""
    return {"target": target, "destination": words[-1] if words else "", "holding": "", "checked": [], "reached": 0,
            "again": False, "refused": False, "new": False, "done": False}


def update(state, action, observation):
    new = dict(state, again=False, refused=observation.startswith("Nothing happens"), new=False)
    if new["refused"]:
        return new
    went = re.match(r"go to (.+)", action)
    if went:
        place = went.group(1)
        new["again"], new["new"] = place in new["checked"], place not in new["checked"]
        new["checked"] = [p for p in new["checked"] if p != place][-(LAST - 1):] + [place]
    took = re.match(r"take (\\\\w+) \\\\d+ from", action)
    if took:
        new["holding"] = took.group(1)
        if took.group(1) == new["target"]:
            new["reached"] = max(new["reached"], 1)
    put = re.match(r"move (\\\\w+) \\\\d+ to (\\\\w+) \\\\d+", action)
    if put:
        new["holding"] = ""
        if put.group(1) == new["target"] and put.group(2) == new["destination"]:
            new["done"], new["reached"] = True, 2
    return new


def render(state):
    subgoal = "done" if state["done"] else "place_object" if state["holding"] else "find_object"
    return "\\\\n".join([f"target_object: {state['target'][:30]}", f"destination: {state['destination'][:30]}",
                        f"holding: {state['holding'][:30] or 'nothing'}",
                        f"checked: {', '.join(p[:20] for p in state['checked']) or 'none'}", f"subgoal: {subgoal}"])


def done(state):
    return state["done"]


def events(before, action, observation, after):
    named = ["subgoal"] * (after["reached"] - before["reached"])
    named += ["new_place"] * after["new"] + ["refused"] * after["refused"] + ["again"] * after["again"]
    return named
""".replace("\\\\", "\\")

ALWAYS_DONE = GOOD.replace('return state["done"]', "return True")
"""cheats: always claims success"""
ASKS_THE_OUTCOME = GOOD.replace("def update(state, action, observation):", "def update(state, action, observation, success):")
"""cheats: asks for the outcome"""
COUNTS_TURNS = GOOD.replace(
    "new = dict(state, again=False", 'new = dict(state, turn=state.get("turn", 0) + 1, again=False'
).replace('return state["done"]', 'return state.get("turn", 0) >= 5')
"""cheats: assumes success after five turns"""
NEVER_ENDS = GOOD.replace("    put = re.match", "    while took:\n        pass\n    put = re.match")
"""hangs once an object is taken"""
READS_FILES = "import os\n" + GOOD.replace(
    'return state["done"]', 'return os.path.exists("log") and "won" in open("log").read()'
)
"""reads the outcome from a file"""
REMEMBERS = (
    GOOD.replace("LAST = 8", "LAST = 8\nSEEN = []")
    .replace("def start(goal, observation):", "def start(goal, observation):\n    SEEN.append(goal)")
    .replace('"subgoal: {subgoal}"', '"subgoal: {subgoal} {len(SEEN)}"')
)
"""its state block depends on earlier calls"""
GROWS = GOOD.replace('new["checked"] = [p for p in new["checked"] if p != place][-(LAST - 1):] + [place]',
                     'new["checked"] = new["checked"] + [place]')  # fmt: skip
OVERPAYS = GOOD.replace('["new_place"] * after["new"]', '["subgoal"] * after["new"]')
"""rewards a subgoal for every new place"""
UNDERPAYS = GOOD.replace('CLAIMS = {"subgoal": 2.0}', 'CLAIMS = {"subgoal": 3.0}')
MISNAMES = GOOD.replace('["new_place"] * after', '["discovery"] * after')

OWN_REWARDS = """
REWARDS = {"progress": {"took": 0.5, "placed": 1.0}, "error": {"refused": 0.3}}
CLAIMS = {"took": 0.5, "placed": 1.0}


def events(before, action, observation, after):
    named = []
    if before["holding"] == "nothing" and after["holding"].startswith(after["object"]) and not before["came_up"].get("took"):
        named.append("took")
    if before["subgoal"] != "done" and after["subgoal"] == "done":
        named.append("placed")
    return named + ["refused"] * observation.startswith("Nothing happens")
"""
"""rewards over the world's own state block"""


def fenced(draft: str) -> str:
    """The draft in a model's answer."""
    return f"Here is the file.\n```python\n{draft}\n```\nIt follows the agent."
