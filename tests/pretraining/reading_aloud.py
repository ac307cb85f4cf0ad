"""Independent checker for the corpus's questions: parses texts with plain string operations, not the generator's regexes."""

from __future__ import annotations

from tacit.worlds.countdown.world import Operation, evaluate


def fields_of(text: str) -> dict[str, str]:
    """`label: value` lines; the label is lowercase letters and spaces."""
    found = {}
    for line in text.split("\n"):
        label, colon, value = line.partition(": ")
        letters = label.replace(" ", "")
        if colon and value and label[:1] != " " and letters.isascii() and letters.isalpha() and letters.islower():
            found[label] = value
    return found


def spelled_out(value: str) -> list[str]:
    """Expands `drawer 1-3 5, bed 1` to drawer 1, drawer 2, drawer 3, drawer 5, bed 1."""
    names = []
    for part in value.split(", "):
        kind: list[str] = []
        counted = False
        for word in part.split(" "):
            if not word[:1].isdigit():
                if counted:  # `egg 1 at sinkbasin 1` is a sentence
                    return [value]
                kind.append(word)
                continue
            ends = word.split("-")
            numbers = range(int(ends[0]), int(ends[-1]) + 1)
            names += [" ".join([*kind, str(n)]) for n in numbers]
            counted = True
        if not counted:
            names.append(part)
    return names


def places_of(line: str) -> dict[str, list[str]]:
    """Objects by place, from the line with the current observation."""
    found = {}
    for piece in line.rstrip(" >").replace("|", ";").split(";"):
        place, colon, things = piece.strip().partition(": ")
        if colon:
            found[place.removesuffix(" open")] = things.split(", ")
    return found


def is_right(question: str, answer: str, text: str, actions: tuple[str, ...]) -> tuple[str, bool]:
    """(kind of question, whether the answer is the only right one)"""
    fields = fields_of(text)
    if question in fields:
        return "field", answer == fields[question]
    word, _, rest = question.partition(" ")
    if word == "where":
        places = places_of(text.split("\n")[-1])
        return "where", [place for place, things in places.items() if rest in things] == [answer]
    if word == "can":
        return "can", answer == ("yes" if rest in actions else "no")
    if word == "how:":
        without = "".join(letter for letter in answer if not letter.isdigit())
        return "how", answer in actions and without.replace(" ", "") == rest.replace(" ", "")
    if word == "first":
        return "first", spelled_out(fields[rest])[0] == answer
    if word == "next":
        name, _, item = rest.partition(" after ")
        names = spelled_out(fields[name])
        return "next", [names[i + 1] for i, here in enumerate(names[:-1]) if here == item] == [answer]
    if " in " in question:
        item, _, name = question.rpartition(" in ")
        return "in", answer == ("yes" if item in spelled_out(fields[name]) else "no")
    first, sign, second = question.split()
    value = evaluate(Operation(sign, int(first), int(second)))
    return "arithmetic", answer == ("none" if value is None else str(value))
