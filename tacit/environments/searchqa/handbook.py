"""Skills of Search QA by hand, for methods that retrieve one: how to look things up, never what the answer is."""

from __future__ import annotations

HANDBOOK = {
    "": (
        "search for a name in the question, not for the whole question; read what was found before searching again; keep the "
        "last turn for the answer, and answer with the name or number alone"
    ),
    "bridge": "search for the one who is named first, then for whoever that passage names, until a passage says what is asked",
    "comparison": "search for each of the two by name, one after the other, and compare what their passages say",
}
