"""Words, and how far they are apart."""

SMALL_WORDS = ("a", "an", "and", "at", "but", "by", "for", "in", "of", "on", "or", "the", "to")


def slug(text, longest=40):
    """Lower-case letters and digits with single dashes between, cut at a dash."""
    found = ""
    for letter in text.lower():
        if letter.isalnum():
            found += letter
        elif found and not found.endswith("-"):
            found += "-"
    found = found.strip("-")
    if len(found) <= longest:
        return found
    cut = found[: longest + 1].rfind("-")
    return found[:cut] if cut > 0 else found[:longest]


def title_case(text):
    """Capitals for the first, the last and every large word."""
    words = text.lower().split()
    last = len(words) - 1
    found = []
    for number, word in enumerate(words):
        if word in SMALL_WORDS and number != 0 and number != last:
            found.append(word)
        else:
            found.append(word[0].upper() + word[1:])
    return " ".join(found)


def distance(first, second):
    """The number of insertions, deletions and replacements between two words."""
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(second, 1):
            cost = above if letter == other else 1 + min(above, row[j], row[j - 1])
            above, row[j] = row[j], cost
    return row[-1]


def is_palindrome(text):
    letters = [letter for letter in text.lower() if letter.isalnum()]
    left, right = 0, len(letters) - 1
    while left < right:
        if letters[left] != letters[right]:
            return False
        left += 1
        right -= 1
    return True


def common_prefix(words):
    if not words:
        return ""
    shortest = min(words, key=len)
    for place, letter in enumerate(shortest):
        if any(word[place] != letter for word in words):
            return shortest[:place]
    return shortest


def caesar(text, shift):
    """Move each letter of the alphabet by `shift` places, and leave the rest."""
    found = []
    for letter in text:
        if "a" <= letter <= "z":
            base = ord("a")
        elif "A" <= letter <= "Z":
            base = ord("A")
        else:
            found.append(letter)
            continue
        found.append(chr((ord(letter) - base + shift) % 26 + base))
    return "".join(found)


def top_words(text, count):
    """The most frequent words, most frequent first, then in alphabetical order."""
    counts = {}
    for word in text.lower().split():
        word = word.strip(".,;:!?")
        if word:
            counts[word] = counts.get(word, 0) + 1
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return [(word, counts[word]) for word in ordered[:count]]


def parse_fields(line, separator=","):
    """Fields of a line. Quotes protect separators, a doubled quote is a quote."""
    fields, field, quoted, place = [], "", False, 0
    while place < len(line):
        letter = line[place]
        if quoted:
            if letter == '"' and place + 1 < len(line) and line[place + 1] == '"':
                field += '"'
                place += 1
            elif letter == '"':
                quoted = False
            else:
                field += letter
        elif letter == '"':
            quoted = True
        elif letter == separator:
            fields.append(field)
            field = ""
        else:
            field += letter
        place += 1
    if quoted:
        raise ValueError("a quote is not closed")
    return [*fields, field]
