"""`tacit bank`: list, explain, remove and export the entries of an experience bank."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.cli.terminal import Command, dispatch, make_console, say, say_pairs, shorten, table
from tacit.companions.experience.bank import Bank, Entry, Usage, remove_by_hand
from tacit.companions.experience.files import entry_record, export_lines, find_bank, read_bank
from tacit.companions.experience.retrieval import ORDERS, rank_entries
from tacit.config.flags import Parser
from tacit.core.bounds import AtLeastOne
from tacit.core.progress import pluralize
from tacit.runs.files import write_text

WIDTH = 160  # characters shown of an entry


def run(argv: Sequence[str]) -> int:
    commands: dict[str, Command] = {
        "list": (list_entries, "list entries by use, or by the results of the episodes they guided"),
        "explain": (explain, "show one entry: its origin, what it replaced, every episode it guided"),
        "remove": (remove, "retire entries; their record stays"),
        "export": (export, "write the live entries as JSON lines (- prints them)"),
    }
    summary = "List and edit the experience bank of a run. BANK is a run directory or the file of a bank."
    return dispatch(argv, "tacit bank", summary, commands, list_entries, "BANK")


def list_entries(argv: Sequence[str]) -> int:
    parser = _parser("list", "List the entries of an experience bank.")
    by_help = "use: most retrieved first; useful, harmful: only entries with more wins than losses, or the reverse"
    parser.flag("--by", "use", by_help, None, choices=ORDERS)
    parser.flag("--most", 20, "number of entries to show", bound=AtLeastOne)
    parser.flag("--json", False, "print one JSON list")
    arguments, bank = _parsed(parser, argv)
    entries, console = rank_entries(bank, arguments.by), make_console()
    listed = entries[: arguments.most]
    if arguments.json:
        print(json.dumps([entry_record(*pair) for pair in listed], ensure_ascii=False))
        return 0
    if listed:
        console.print(_table(listed))
    kinds = {"use": "", "useful": " that won more often than they lost", "harmful": " that lost more often than they won"}
    say(
        console,
        f"{len(listed)} of {len(entries)} entries{kinds[arguments.by]}; {len(bank)} in the bank ({bank.embedder})",
        "dim",
    )
    return 0


def explain(argv: Sequence[str]) -> int:
    parser = _parser("explain", "Show one entry: its origin, what it replaced, and the episodes it guided.")
    parser.add_argument("id", type=int, metavar="ID", help="number of the entry")
    parser.flag("--json", False, "print one JSON object")
    arguments, bank = _parsed(parser, argv)
    record = bank.explain(arguments.id)
    if arguments.json:
        print(json.dumps(record, ensure_ascii=False))
    else:
        _show(record)
    return 0


def remove(argv: Sequence[str]) -> int:
    parser = _parser("remove", "Retire entries: they guide no more episodes; their record stays.")
    help = "numbers of entries; if one does not exist, none is removed"
    parser.add_argument("ids", type=int, nargs="+", metavar="ID", help=help)
    arguments, _ = _parsed(parser, argv)
    ids = list(dict.fromkeys(arguments.ids))
    left = remove_by_hand(find_bank(arguments.bank), ids)
    say(make_console(), f"removed {len(ids)}; {left} are left. A run that is training stops using them at once.")
    return 0


def export(argv: Sequence[str]) -> int:
    parser = _parser("export", "Write the live entries as JSON lines.")
    parser.add_argument("file", type=Path, metavar="FILE", help="output file; - prints them")
    arguments, bank = _parsed(parser, argv)
    lines = "".join(f"{line}\n" for line in export_lines(bank))
    if arguments.file == Path("-"):
        sys.stdout.write(lines)
        return 0
    write_text(arguments.file, lines)
    say(make_console(), f"{arguments.file}: {pluralize(len(bank), 'entry', 'entries')}")
    return 0


def _parser(command: str, summary: str) -> Parser:
    parser = Parser(f"bank {command}", summary)
    parser.add_argument("bank", type=Path, metavar="BANK", help="run directory, or the file of a bank")
    return parser


def _parsed(parser: Parser, argv: Sequence[str]) -> tuple[Any, Bank]:
    arguments, _ = parser.parse(argv)
    return arguments, read_bank(find_bank(arguments.bank))


def _table(entries: Sequence[tuple[Entry, Usage]]) -> Any:
    numbers = ("retrieved", "won", "lost", "trained on")
    rows = []
    for entry, use in entries:
        counts = map(str, (entry.id, use.retrieved, use.wins, use.losses, use.trained))
        rows.append((*counts, entry.origin.task or entry.origin.world, shorten(entry.text, WIDTH)))
    return table("", ("id", *numbers, "from", "entry"), rows, numbers)


def _show(record: dict[str, Any]) -> None:
    console, origin = make_console(), record["origin"]
    say(console, record["text"], "bold")
    outcome = "a success" if origin["success"] else "a failure"
    came = {"import": "a file", "merge": "a merge"}.get(origin["operation"], outcome)
    where = " ".join(filter(None, (origin["world"], origin["family"], origin["task"])))
    guided = [event for event in record["events"] if event["kind"] == "guided"]
    counts = Counter(event["kind"] for event in record["events"])
    won = sum(bool(event["success"]) for event in guided)
    after = f"; replaced by {', '.join(map(str, record['replaced_by']))}" if record["replaced_by"] else ""
    came += f"{f' in {where}' if where else ''}, episode seed {origin['episode']}, iteration {origin['step']}"
    pairs = [("entry", str(record["id"])), ("origin", came)]
    pairs += [("state", f"retired: {record['retired']}{after}" if record["retired"] else "live")]
    pairs += [("retrieved", pluralize(counts["retrieved"], "time"))]
    pairs += [("guided", f"{pluralize(len(guided), 'episode')}: {won} won, {len(guided) - won} lost")]
    say_pairs(console, [*pairs, ("trained on", pluralize(counts["trained"], "time"))])
    for old in record["replaced"]:
        say(console, f"  replaced {old['id']} ({old['retired']}): {shorten(old['text'], WIDTH)}")
    if guided:
        rows = [(str(e["step"]), e["task"] or "", "won" if e["success"] else "lost") for e in guided]
        console.print(table("", ("iteration", "task", "result"), rows))
