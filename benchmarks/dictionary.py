"""Cost and quality of ReuseRL's E-step: greedy merging against both brute-force searches (§F.1), and at training size.

    python benchmarks/dictionary.py [--json] [--groups 205] [--original 40] [--run RUN]

§F.1    groups of ten random sequences of two to six skills from five: time per group, description length, the gap of greedy
        to the brute force that keeps all single skills, and the share of its phrases that greedy finds. Uniform weights as
        published, and Zipf weights, which give phrases to merge. The paper: 0.053 ms, 11.86 ms and 118.58 ms per group; 0.14%,
        99.02%.
planted sequences of the same lengths, of which 70% of the draws are one of three phrases: the planted phrases that greedy finds
        as the corpus grows, its gap to the brute force (up to 30 sequences), and to the best subset of the three.
E-step  384 sequences of up to 50 skills from 26: without structure, and made of 20 reused phrases.
growth  the same with more sequences, and with larger alphabets.
share   of a training iteration, from the metrics of a run that used ReuseRL. Goal: 1%.

Times are CPU seconds of one thread, the best of several.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

from tacit.companions.dictionary import Dictionary, Phrase, extract_dictionary
from tacit.core.errors import TacitError
from tacit.runs.directory import read_metrics

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "companions"))  # the tests have the brute-force searches

from exhaustive import all_singletons, original

Corpus = list[Phrase]
FIVE = tuple("ABCDE")
WEIGHTS = {"uniform": (1.0,) * 5, "zipf": tuple(1 / (i + 1) for i in range(5))}


def synthetic_groups(count: int, weights: Sequence[float], seed: int = 0) -> list[Corpus]:
    rng = random.Random(seed)
    return [[tuple(rng.choices(FIVE, weights, k=rng.randint(2, 6))) for _ in range(10)] for _ in range(count)]


def training_corpus(kind: str, sequences: int = 384, alphabet: int = 26, longest: int = 50, seed: int = 0) -> Corpus:
    """`noise` is uniform; in `reuse`, 70% of the draws are one of 20 phrases of two to five skills."""
    rng = random.Random(seed)
    skills = names(alphabet)
    phrases = [tuple(rng.choices(skills, k=rng.randint(2, 5))) for _ in range(20)]
    corpus = []
    for _ in range(sequences):
        corpus.append(draw_sequence(rng, phrases if kind == "reuse" else (), skills, rng.randint(1, longest)))
    return corpus


def draw_sequence(rng: random.Random, phrases: Sequence[Phrase], skills: Sequence[str], length: int) -> Phrase:
    sequence: list[str] = []
    while len(sequence) < length:
        sequence += rng.choice(phrases) if phrases and rng.random() < 0.7 else [rng.choice(skills)]
    return tuple(sequence[:length])


def names(alphabet: int) -> tuple[str, ...]:
    return tuple(f"S{i:03d}" for i in range(alphabet))


def cpu_ms(work: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return 1000 * best


def section_f1(name: str, groups: int, originals: int) -> dict[str, float]:
    corpora = synthetic_groups(groups, WEIGHTS[name])
    few = corpora[:originals]
    greedy, best = [extract_dictionary(c, FIVE) for c in corpora], [all_singletons(c, FIVE) for c in corpora]
    result: dict[str, float] = {
        "groups": groups,
        "greedy_ms": cpu_ms(lambda: [extract_dictionary(c, FIVE) for c in corpora], 5) / groups,
        "all_singletons_ms": cpu_ms(lambda: [all_singletons(c, FIVE) for c in corpora], 1) / groups,
        "greedy_bits": sum(g.description_length for g in greedy) / groups,
        "all_singletons_bits": sum(b.description_length for b in best) / groups,
    }
    result["above_percent"] = 100 * (result["greedy_bits"] / result["all_singletons_bits"] - 1)
    pairs = list(zip(greedy, best, strict=True))
    result["phrases"] = sum(len(b.merged) for _, b in pairs)
    result["phrases_found"] = sum(len(set(b.merged) & set(g.dictionary.merged)) for g, b in pairs)
    if few:
        true: list = []
        result["original_ms"] = cpu_ms(lambda: true.extend(original(c, FIVE) for c in few), 1) / len(few)
        result["original_bits"] = sum(o.description_length for o in true) / len(few)
        result["greedy_bits_there"] = sum(g.description_length for g in greedy[: len(few)]) / len(few)
    return result


def planted(sequences: int, groups: int = 40, seed: int = 0) -> dict[str, float]:
    rng = random.Random(seed)
    result = {"found": 0.0, "planted": 0.0, "above_planted_percent": 0.0, "above_percent": 0.0}
    for _ in range(groups):
        phrases = tuple(dict.fromkeys(tuple(rng.choices(FIVE, k=rng.randint(2, 4))) for _ in range(3)))
        corpus = [draw_sequence(rng, phrases, FIVE, rng.randint(2, 6)) for _ in range(sequences)]
        greedy = extract_dictionary(corpus, FIVE)
        choices = (chosen for size in range(4) for chosen in combinations(phrases, size))
        best = min(Dictionary(FIVE, chosen).description_length(corpus) for chosen in choices)
        result["found"] += len(set(phrases) & set(greedy.dictionary.merged))
        result["planted"] += len(phrases)
        result["above_planted_percent"] += 100 * (greedy.description_length / best - 1) / groups
        if sequences <= 30:
            result["above_percent"] += (
                100 * (greedy.description_length / all_singletons(corpus, FIVE).description_length - 1) / groups
            )
    return result


def show_planted() -> dict[str, dict[str, float]]:
    results = {}
    for count in (10, 30, 100, 300, 1000):
        result = results[str(count)] = planted(count)
        searched = f"; {result['above_percent']:.1f}% above the brute force" if count <= 30 else ""
        print(f"  {count:>5} sequences: {result['found']:.0f} of {result['planted']:.0f} planted phrases", end="; ")
        print(f"{result['above_planted_percent']:+.1f}% to the best choice of them{searched}")
    return results


def e_step(kind: str, sequences: int = 384, alphabet: int = 26, repeats: int = 7) -> dict[str, float]:
    corpus, skills = training_corpus(kind, sequences, alphabet), names(alphabet)
    found = extract_dictionary(corpus, skills)
    result = {"ms": cpu_ms(lambda: extract_dictionary(corpus, skills), repeats), "merged": len(found.dictionary.merged)}
    batch = corpus[:128]
    return result | {"reward_ms": cpu_ms(lambda: [found.dictionary.seg(s) for s in batch], repeats)}


def share_of_a_step(run: Path) -> dict[str, float]:
    records = [r for r in read_metrics(run / "metrics.jsonl") if r["stage"] == "rl" and "dictionary_seconds" in r]
    if not records:
        raise TacitError(f"{run} has no iteration with a dictionary; train it with --method reuserl.")
    spent, all_ = sum(r["dictionary_seconds"] for r in records), sum(r["seconds"] for r in records)
    most = max(r["dictionary_seconds"] for r in records)
    return {"iterations": len(records), "share_percent": 100 * spent / all_, "mean_ms": 1000 * spent / len(records),
            "most_ms": 1000 * most, "iteration_s": all_ / len(records)}  # fmt: skip


def show_f1(result: dict[str, float]) -> None:
    greedy_ms = result["greedy_ms"]
    print(f"  greedy         {greedy_ms:8.3f} ms per group, {result['greedy_bits']:.3f} bits")
    print(
        f"  all singletons {result['all_singletons_ms']:8.3f} ms, {result['all_singletons_ms'] / greedy_ms:,.0f}× greedy",
        end="; ",
    )
    print(f"greedy {result['above_percent']:.3f}% above, with {result['phrases_found']:.0f} of {result['phrases']:.0f} phrases")
    if "original_ms" in result:
        below = 100 * (1 - result["original_bits"] / result["greedy_bits_there"])
        print(
            f"  original       {result['original_ms']:8.3f} ms, {result['original_ms'] / greedy_ms:,.0f} times as long",
            end="; ",
        )
        print(f"{below:.1f}% below greedy on its groups")


def growth() -> dict[str, dict[str, dict[str, float]]]:
    by_sequences, by_alphabet = {}, {}
    for count in (96, 192, 384, 768, 1536, 3072):
        result = by_sequences[str(count)] = e_step("reuse", sequences=count, repeats=3)
        print(f"  {count:>5} sequences {result['ms']:8.1f} ms, {result['merged']} phrases")
    for size in (5, 10, 26, 100, 400):
        result = by_alphabet[str(size)] = e_step("reuse", alphabet=size, repeats=3)
        print(f"  {size:>5} skills    {result['ms']:8.1f} ms, {result['merged']} phrases")
    return {"sequences": by_sequences, "alphabet": by_alphabet}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=205, help="§F.1 groups (default: 205, as published)")
    parser.add_argument("--original", type=int, default=40, help="groups for the slower brute force (default: 40)")
    parser.add_argument("--run", type=Path, help="a ReuseRL run, for the share of an iteration")
    parser.add_argument("--growth", action=argparse.BooleanOptionalAction, default=True, help="also measure growing corpora")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    if arguments.groups < 1:
        print(f"error: --groups {arguments.groups} must be at least 1", file=sys.stderr)
        return 2
    results: dict[str, dict] = {"f1": {}, "e_step": {}}
    for name in WEIGHTS:
        results["f1"][name] = section_f1(name, arguments.groups, min(arguments.original, arguments.groups))
        print(f"§F.1 {name}")
        show_f1(results["f1"][name])
    for kind in ("noise", "reuse"):
        result = results["e_step"][kind] = e_step(kind)
        print(f"E-step, 384 sequences of {kind}: {result['ms']:.1f} ms, {result['merged']} phrases", end="; ")
        print(f"reward of 128 successes: {result['reward_ms']:.1f} ms")
    if arguments.growth:
        results |= growth()
        print("planted phrases, 40 groups each")
        results["planted"] = show_planted()
    if arguments.run is not None:
        try:
            result = results["share"] = share_of_a_step(arguments.run)
        except TacitError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"share of an iteration of {result['iteration_s']:.2f} s: {result['share_percent']:.3f}%", end=" ")
        print(f"({result['mean_ms']:.2f} ms, at most {result['most_ms']:.2f} ms)")
    if arguments.json:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
