"""Recall at 3 of each retriever: how often a search returns the supporting passages of a question.

    SEARCHQA_DATA=path python benchmarks/search_recall.py [--retriever bm25] [--questions 0] [--json]

    question    query is the question: share of its supporting passages among the three results
    first hop   the same, for supporting passages whose title is in the question
    titles      one query per supporting passage, its title: an oracle's recall

Without SEARCHQA_DATA, it measures the generated splits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.worlds.searchqa.published import DATA_VARIABLE, data_root, published_tasks, question_files
from tacit.worlds.searchqa.retrieval import BM25
from tacit.worlds.searchqa.world import GENERATED, open_index, tasks

EVERY = 10**6


def question_sets(retriever: str) -> dict[str, list[Task]]:
    """dataset -> its questions of all splits"""
    if not os.environ.get(DATA_VARIABLE):
        made = {split: tasks(split, 512, 0) for split in GENERATED}
        return {s: [replace(t, data={**t.data, "retriever": retriever}) for t in found] for s, found in made.items()}
    found: dict[str, list[Task]] = {}
    for path in question_files(data_root()):
        rows = [t for split in ("published_train", "published_test") for t in _all(split, str(path), retriever)]
        found[path.stem] = [t for t in rows if t.data["titles"]]
    return found


def _all(split: str, path: str, retriever: str) -> Sequence[Task]:
    """All questions of a split. Requesting a subset of the families allows a count larger than the split."""
    some = published_tasks(split, EVERY, 0, ("one_hop", "bridge"), path, retriever)
    return (*some, *published_tasks(split, EVERY, 0, ("comparison",), path, retriever))


def recall(questions: Sequence[Task]) -> dict[str, float]:
    hits = {"question": [], "whole": [], "first_hop": [], "titles": []}
    start = time.perf_counter()
    open_index(questions[0])
    opened_s, queries, spent_s = time.perf_counter() - start, 0, 0.0
    for task in questions:
        library = open_index(task)
        titles, named = task.data["titles"], task.goal.lower()

        def found(query: str, library=library) -> set[str]:
            nonlocal queries, spent_s
            begin = time.process_time()
            passages = library.search(query)
            queries, spent_s = queries + 1, spent_s + time.process_time() - begin
            return {passage.title for passage in passages}

        by_question = found(task.goal)
        hits["question"].append(sum(title in by_question for title in titles) / len(titles))
        hits["whole"].append(float(by_question >= set(titles)))
        hits["first_hop"] += [float(title in by_question) for title in titles if title.lower() in named]
        hits["titles"].append(sum(title in found(title) for title in titles) / len(titles))
    means = {f"recall_{name}": sum(values) / len(values) for name, values in hits.items() if values}
    return {**means, "questions": len(questions), "open_s": opened_s, "ms_per_query": 1000 * spent_s / queries}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retriever", action="append", help=f"{BM25} (default) or a sentence encoder; repeat for several")
    parser.add_argument("--questions", type=int, default=0, help="maximum questions per set (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    try:
        for retriever in arguments.retriever or [BM25]:
            for name, questions in question_sets(retriever).items():
                rates = recall(questions[: arguments.questions or None])
                results.setdefault(name, {})[retriever] = rates
                summary = "  ".join(
                    f"{key.removeprefix('recall_')} {rates[key]:.3f}" for key in rates if key.startswith("recall_")
                )
                print(f"{name:<18} {retriever:<10} {summary}  ({rates['questions']} questions, {rates['ms_per_query']:.2f} ms)")
    except TacitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
