"""A small PDDL problem in the published format, for tests that need no downloaded data."""

from __future__ import annotations

import json

_RECEPTACLES = {
    # id -> (type, location, openable)
    "CounterTop_bar__plus_01": ("CounterTop", "loc_bar_1", False),
    "Sink_bar__plus_02_bar_SinkBasin": ("SinkBasin", "loc_bar_1", False),
    "Fridge_bar__plus_03": ("Fridge", "loc_bar_2", True),
    "Microwave_bar__plus_04": ("Microwave", "loc_bar_3", True),
    "SideTable_bar__plus_05": ("SideTable", "loc_bar_4", False),
    "Drawer_bar__minus_01": ("Drawer", "loc_bar_5", True),
    "Drawer_bar__plus_01": ("Drawer", "loc_bar_5", True),
}
_OBJECTS = {
    # id -> (type, receptacles, predicates)
    "Apple_bar__minus_01": ("Apple", ["Fridge_bar__plus_03"], "pickupable sliceable heatable coolable cleanable isCool"),
    "Apple_bar__plus_01": (
        "Apple",
        ["CounterTop_bar__plus_01", "Sink_bar__plus_02_bar_SinkBasin"],
        "pickupable sliceable heatable coolable cleanable",
    ),
    "Knife_bar__plus_01": ("Knife", ["CounterTop_bar__plus_01"], "pickupable cleanable"),
    "Bowl_bar__plus_01": ("Bowl", ["CounterTop_bar__plus_01"], "pickupable cleanable coolable isReceptacleObject"),
    "Egg_bar__plus_01": ("Egg", ["CounterTop_bar__plus_01"], "pickupable sliceable heatable coolable cleanable"),
    "DeskLamp_bar__plus_01": ("DeskLamp", ["SideTable_bar__plus_05"], "toggleable"),
    "Pen_bar__plus_01": ("Pen", ["Drawer_bar__plus_01"], "pickupable"),
    "Pencil_bar__plus_01": ("Pencil", ["Drawer_bar__plus_01"], "pickupable"),
    "Window_bar__plus_09": ("Window", [], ""),
}
_FITS = """CounterTop:Apple,Knife,Bowl,Egg,Pen Fridge:Apple,Bowl,Egg Microwave:Apple,Egg SinkBasin:Apple,Knife,Bowl
SideTable:Apple,Pen,Pencil Drawer:Pen,Pencil,Knife"""

PLACE = """(exists (?r - receptacle) (exists (?o - object) (and {ability}
    (objectType ?o {kind}Type) (receptacleType ?r {target}Type) {state} (inReceptacle ?o ?r))))"""
GOALS = {
    "pick": PLACE.format(kind="Pen", target="SideTable", ability="", state=""),
    "heat": PLACE.format(kind="Apple", target="CounterTop", ability="(heatable ?o)", state="(isHot ?o)"),
    "cool": PLACE.format(kind="Bowl", target="CounterTop", ability="(coolable ?o)", state="(isCool ?o)"),
    "clean": PLACE.format(kind="Knife", target="Drawer", ability="(cleanable ?o)", state="(isClean ?o)"),
    "pick2": """(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 AppleType)
        (receptacleType ?r SideTableType) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2))
        (objectType ?o2 AppleType) (receptacleType ?r SideTableType) (inReceptacle ?o2 ?r))))))""",
    "look": """(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType)
        (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
        (exists (?o - object ?a - agent) (and (objectType ?o PenType) (holds ?a ?o)))""",
}
SENTENCES = {family: f"do the {family} task." for family in GOALS}


def problem(family: str = "pick", goal: str | None = None) -> str:
    """The PDDL text of the house with one of the six goals."""
    declared = ["agent1 - agent", "Apple Pen - object", "ButterKnifeType SinkType - otype"]
    declared += [f"{kind}Type - rtype" for kind in sorted({kind for kind, _, _ in _RECEPTACLES.values()})]
    declared += [f"{kind}Type - otype" for kind in sorted({kind for kind, _, _ in _OBJECTS.values()})]
    facts = ["(atLocation agent1 loc_bar_0)"]
    declared += [f"loc_bar_{i} - location" for i in range(6)]
    for receptacle, (kind, location, openable) in _RECEPTACLES.items():
        declared.append(f"{receptacle} - receptacle")
        facts += [f"(receptacleType {receptacle} {kind}Type)", f"(receptacleAtLocation {receptacle} {location})"]
        facts += [f"(openable {receptacle})"] * openable
    for name, (kind, receptacles, predicates) in _OBJECTS.items():
        declared.append(f"{name} - object")
        facts += [f"(objectType {name} {kind}Type)", *(f"({p} {name})" for p in predicates.split())]
        facts += [f"(inReceptacle {name} {r})" for r in receptacles]
        facts += [f"(objectAtLocation {name} {place})" for place in sorted({_RECEPTACLES[r][1] for r in receptacles})]
    facts.append("(inReceptacleObject Egg_bar__plus_01 Bowl_bar__plus_01)")
    for row in _FITS.split():
        receptacle, kinds = row.split(":")
        facts += [f"(canContain {receptacle}Type {kind}Type)" for kind in kinds.split(",")]
    return (
        f"(define (problem plan_test)\n(:domain alfred)\n(:objects\n{chr(10).join(declared)})\n"
        f"(:init ; the house\n{chr(10).join(facts)})\n(:goal (and {GOALS[family] if goal is None else goal})))\n"
    )


def lines(families=tuple(GOALS), split: str = "train") -> list[str]:
    """One game of each family, as a line of published data."""
    return [
        json.dumps(
            {
                "split": split,
                "task": f"task_{family}",
                "trial": "trial_1",
                "goal_text": SENTENCES[family],
                "walkthrough": ["look"],
                "pddl_problem": problem(family),
            }
        )
        for family in families
    ]
