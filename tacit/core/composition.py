"""Composition of methods: GRPO plus the changes of one or several methods.

GRPO consists of parts. A part belongs to a piece of the method and has a role: rewards (outcome, invalid penalty), credits
(episode credit), columns (reference), losses (surrogate, KL, entropy). Every other method *replaces* some of these roles, as
RLOO does the episode credit, or *adds* new ones, as ReuseRL does a length cost and a dictionary. Combining methods applies all
replacements, then all additions, so their order does not matter. Two methods that replace or add the same role are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tacit.core.errors import TacitError, unknown
from tacit.core.method import Context, Method, Schedule

Piece = Literal[
    "context", "rewards", "credits", "comparison", "columns", "losses", "companions", "conditions", "selection", "hidden_state"
]
# Terms of `context` are functions context -> context. Terms of `comparison` are functions credit term -> credit term, applied
# to the credits of all methods: they decide which episodes are compared.
SINGLE = ("conditions", "selection", "hidden_state")  # pieces of which a method has at most one


@dataclass(frozen=True)
class Part:
    piece: Piece
    role: str  # short name, used in error messages
    terms: tuple[Any, ...]
    replaces: bool = False

    @property
    def place(self) -> tuple[str, str]:
        return self.piece, self.role


def adds(piece: Piece, role: str, *terms: Any) -> Part:
    """A new role. Without terms it only reserves the role."""
    return Part(piece, role, terms)


def replaces(piece: Piece, role: str, *terms: Any) -> Part:
    """Replaces a role; without terms, removes it."""
    return Part(piece, role, terms, replaces=True)


def compose(
    name: str, context: Context, schedule: Schedule, base: Sequence[Part], changes: Mapping[str, Sequence[Part]]
) -> Method:
    """The method made of the parts `base` and the changes of each method by name."""
    check_places(changes)
    parts = {part.place: part for part in base}
    for method, own in changes.items():
        for part in own:
            if part.place in parts and not part.replaces:
                raise TacitError(
                    f"{method!r} adds a {part.role} to the {part.piece}, but there is one already; use `replaces`, not `adds`."
                )
    ordered = [part for method in sorted(changes) for part in changes[method]]
    for part in (*(p for p in ordered if p.replaces), *(p for p in ordered if not p.replaces)):
        parts[part.place] = part
    pieces: dict[str, Any] = {}
    for part in parts.values():
        pieces[part.piece] = (*pieces.get(part.piece, ()), *part.terms)
    for wrap_context in pieces.pop("context", ()):
        context = wrap_context(context)
    for wrap_credit in pieces.pop("comparison", ()):
        pieces["credits"] = tuple(wrap_credit(term) for term in pieces.get("credits", ()))
    for piece in SINGLE:
        terms = pieces.pop(piece, ())
        if len(terms) > 1:
            raise TacitError(f"{name!r} has {len(terms)} terms for {piece}; a method may have at most one.")
        if terms:
            pieces[piece] = terms[0]
    return Method(name=name, context=context, schedule=schedule, **{"rewards": (), "credits": (), "losses": (), **pieces})


def check_places(changes: Mapping[str, Sequence[Part]]) -> None:
    """Refuse values that are not parts, and different changes of two methods to one role."""
    for method, parts in changes.items():
        if not isinstance(parts, Sequence) or not all(isinstance(part, Part) for part in parts):
            raise TacitError(
                f"`changes` of {method!r} must return a tuple of parts, such as (adds(…),), but returned {parts!r}."
            )
        for part in parts:
            if part.piece not in get_args(Piece):
                raise unknown(f"piece of the method {method!r}", part.piece, get_args(Piece))
    holders: dict[tuple[str, str], tuple[str, Part]] = {}
    for method, parts in changes.items():
        for part in parts:
            first, held = holders.setdefault(part.place, (method, part))
            if held == part:
                continue
            if first == method:
                raise TacitError(
                    f"{method!r} changes the {part.role} twice; give all of its terms to one `adds` or `replaces`."
                )
            if part.replaces and held.replaces:
                reason = f"both replace the {part.role}, and one of the two would be lost"
            elif not part.replaces and not held.replaces:
                reason = f"both add a {part.role}, which would be counted twice"
            else:
                adding, taking = (first, method) if part.replaces else (method, first)
                reason = f"{adding} adds a {part.role} and {taking} would drop it"
            raise TacitError(f"{first!r} and {method!r} cannot be combined: {reason}.")
