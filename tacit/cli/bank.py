"""`tacit bank`: list, search, explain, remove, export and import the entries of an experience bank."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tacit.cli.terminal import Command, dispatch, make_console, say, say_pairs, shorten, table
from tacit.companions.experience.bank import Bank, Entry, Usage, remove_by_hand
from tacit.companions.experience.files import export_lines, find_bank, import_lines, load_embedding, open_bank, read_bank
from tacit.companions.experience.retrieval import ORDERS, Embedding, NgramEmbedding, rank_entries
from tacit.config.flags import Parser, check_at_least_one
from tacit.config.resources import encoder_of_bank
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.runs.files import write_text

SUMMARY_LINE = "List, search and edit the experience bank of a run. BANK is a run directory or the file of a bank."
GOES_BACK = "A run that is resumed goes back to the bank of its checkpoint."
MOST_TOLD = 10  # bad lines reported one by one
WIDTH = 160  # characters shown of an entry


def run(argv: Sequence[str]) -> int:
    commands: dict[str, Command] = {
        "list": (list_entries, "list entries by use, or by the results of the episodes they guided"),
        "search": (search, "find the entries nearest to a text"),
        "explain": (explain, "show one entry: its origin, what it replaced, every episode it guided"),
        "remove": (remove, "retire entries; their record stays"),
        "export": (export, "write the live entries as JSON lines (- prints them)"),
        "import": (bring_in, "add entries from JSON lines and embed them"),
    }
    return dispatch(argv, "bank", SUMMARY_LINE, commands, list_entries, "BANK")


def list_entries(argv: Sequence[str]) -> int:
    parser = _parser("list", "List the entries of an experience bank.")
    by_help = "use: most retrieved first; useful, harmful: only entries with more wins than losses, or the reverse"
    parser.flag("--by", "use", by_help, None, choices=ORDERS)
    parser.flag("--most", 20, "number of entries to show")
    parser.flag("--json", False, "print one JSON list")
    arguments, bank = _parsed(parser, argv)
    found, console = rank_entries(bank, arguments.by), make_console()
    shown = found[: arguments.most]
    if arguments.json:
        print(json.dumps([_entry_record(*pair) for pair in shown], ensure_ascii=False))
        return 0
    if shown:
        console.print(_table(shown))
    kinds = {"use": "", "useful": " that won more often than they lost", "harmful": " that lost more often than they won"}
    say(console, f"{len(shown)} of {len(found)} entries{kinds[arguments.by]}; {len(bank)} in the bank ({bank.embedder})", "dim")
    return 0


def search(argv: Sequence[str]) -> int:
    parser = _parser("search", "Find the entries nearest to a text, nearest first.")
    parser.add_argument("text", metavar="TEXT", help="text to search for")
    parser.flag("--most", 5, "number of entries to show")
    parser.flag("--json", False, "print one JSON list")
    arguments, bank = _parsed(parser, argv)
    (ids,) = bank.nearest(_embedding_of(bank)([arguments.text]), arguments.most)
    found = [(bank.entries[number], bank.usage[number]) for number in ids]
    if arguments.json:
        print(json.dumps([_entry_record(*pair) for pair in found], ensure_ascii=False))
    elif found:
        make_console().print(_table(found))
    else:
        say(make_console(), "the bank is empty.", "dim")
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
    parser.add_argument("file", metavar="FILE", help="output file; - prints them")
    arguments, bank = _parsed(parser, argv)
    lines = "".join(f"{line}\n" for line in export_lines(bank))
    if arguments.file == "-":
        sys.stdout.write(lines)
        return 0
    write_text(Path(arguments.file), lines)
    say(make_console(), f"{arguments.file}: {pluralize(len(bank), 'entry', 'entries')}")
    return 0


def bring_in(argv: Sequence[str]) -> int:
    parser = _parser("import", "Add entries from JSON lines, each an object with `text`, and embed them.")
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines, as `tacit bank export` writes them")
    help = "embedding of a new bank: ngram (default), or the directory of a sentence encoder"
    parser.flag("--embedding", None, help, "NAME")
    arguments, _ = parser.parse(argv)
    console, path = make_console(), arguments.bank
    if not arguments.file.exists() or arguments.file.is_dir():
        raise TacitError(f"the file {arguments.file} does not exist.")
    bank, embedding = _bank_to_fill(path, arguments.embedding)
    with arguments.file.open("rb") as lines:
        taken = import_lines(bank, embedding, lines)
    for number, problem in taken.bad[:MOST_TOLD]:
        say(console, f"{arguments.file}, line {number}: {problem}", "red")
    more = f" ({len(taken.bad) - MOST_TOLD} more)" if len(taken.bad) > MOST_TOLD else ""
    unread = f"{pluralize(len(taken.bad), 'line')} could not be read{more}"
    say(console, f"added {taken.added}; {taken.known} were there already; {unread}. {len(bank)} are in the bank. {GOES_BACK}")
    return 1 if taken.bad else 0


def _bank_to_fill(place: Path, name: str | None) -> tuple[Bank, Embedding]:
    """The existing bank with its own embedding, or a new one."""
    if place.is_dir() or place.exists():
        bank = open_bank(find_bank(place))
        wanted = NgramEmbedding().name if name == "ngram" else name
        if wanted not in (None, bank.embedder):
            raise TacitError(
                f"{bank.path} is a bank of {bank.embedder}, not of {wanted}: vectors of two models cannot be compared. Leave "
                "--embedding out, or name a file that is not there yet, which becomes a bank of that embedding."
            )
        return bank, _embedding_of(bank)
    embedding: Embedding = NgramEmbedding() if name in (None, "ngram") else load_embedding(name, 0, encoder_of_bank)
    return Bank(place, embedding.name, embedding.dimensions, sys.maxsize), embedding


def _embedding_of(bank: Bank) -> Embedding:
    embedding = load_embedding(bank.embedder, bank.dimensions, encoder_of_bank)
    if embedding.dimensions != bank.dimensions:
        raise TacitError(
            f"{bank.path} was made with {bank.embedder} of {bank.dimensions} dimensions, and the one here has "
            f"{embedding.dimensions}. Export it, and import it into a new bank."
        )
    return embedding


def _parser(command: str, summary: str) -> Parser:
    parser = Parser(f"bank {command}", summary)
    parser.add_argument("bank", type=Path, metavar="BANK", help="run directory, or the file of a bank")
    return parser


def _parsed(parser: Parser, argv: Sequence[str]) -> tuple[Any, Bank]:
    arguments, _ = parser.parse(argv)
    if hasattr(arguments, "most"):
        check_at_least_one(arguments, "most")
    return arguments, read_bank(find_bank(arguments.bank))


def _entry_record(entry: Entry, usage: Usage) -> dict[str, Any]:
    record = {"id": entry.id, "text": entry.text, "origin": asdict(entry.origin)}
    return record | {"retrieved": usage.retrieved, "wins": usage.wins, "losses": usage.losses, "trained": usage.trained}


def _table(found: Sequence[tuple[Entry, Usage]]) -> Any:
    numbers = ("retrieved", "won", "lost", "trained on")
    rows = []
    for entry, use in found:
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
