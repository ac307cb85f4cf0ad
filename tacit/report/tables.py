"""Tables: numbers to the right in figures of one width, wide ones scrolling inside their own frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tacit.report.markup import Child, Markup, tag


@dataclass(frozen=True)
class Column:
    title: Child
    number: bool = True
    note: str = ""
    """said when the title is pointed at"""


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Child]], caption: Child = None, marked: Sequence[int] = ()
) -> Markup:
    """`marked` are the rows to stand out."""
    label = str(caption) if isinstance(caption, str) and not isinstance(caption, Markup) else "table"
    head = tag("tr", [tag("th", c.title, cls="n" if c.number else None, scope="col", title=c.note or None) for c in columns])
    body = []
    for i, row in enumerate(rows):
        first, *rest = zip(columns, row, strict=True)
        cells = [tag("th", first[1], scope="row", cls="n" if first[0].number else None)]
        cells += [tag("td", cell, cls="n" if column.number else None) for column, cell in rest]
        body.append(tag("tr", cells, cls="marked" if i in marked else None))
    made = tag("table", tag("thead", head), tag("tbody", body))
    # The caption stands outside the frame that scrolls, so that it wraps; a keyboard can have the frame in focus.
    frame = tag("div", made, cls="scroll", tabindex="0", role="region", aria_label=label)
    return tag("div", tag("p", caption, cls="caption") if caption else None, frame, cls="table")


def pairs(rows: Sequence[tuple[Child, Child]]) -> Markup:
    """`label  value` lines."""
    return tag("dl", [[tag("dt", label), tag("dd", value)] for label, value in rows], cls="pairs")


def folded(summary: Child, *children: Child, opened: bool = False) -> Markup:
    return tag("details", tag("summary", summary), *children, open=opened)
