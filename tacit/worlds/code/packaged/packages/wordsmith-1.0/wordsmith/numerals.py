"""Numbers as words."""

ROMAN = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
    (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]
SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def to_roman(number):
    """Roman numerals of 1 to 3999."""
    if number < 1 or number > 3999:
        raise ValueError(f"{number} has no Roman numeral")
    found = ""
    for value, letters in ROMAN:
        while number >= value:
            found += letters
            number -= value
    return found


def from_roman(text):
    values = {letters: value for value, letters in ROMAN if len(letters) == 1}
    total = 0
    for place, letter in enumerate(text):
        value = values[letter]
        if place + 1 < len(text) and values[text[place + 1]] > value:
            total -= value
        else:
            total += value
    if to_roman(total) != text:
        raise ValueError(f"{text} is not a Roman numeral")
    return total


def ordinal(number):
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{endings.get(number % 10, 'th')}"


def spell(number):
    """English words for -999999 to 999999."""
    if number < 0:
        return "minus " + spell(-number)
    if number < 20:
        return SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f"-{SMALL[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{SMALL[hundreds]} hundred" + (f" and {spell(rest)}" if rest else "")
    if number >= 1000000:
        raise ValueError(f"{number} is too large")
    thousands, rest = divmod(number, 1000)
    words = f"{spell(thousands)} thousand"
    if rest == 0:
        return words
    return f"{words} and {spell(rest)}" if rest < 100 else f"{words} {spell(rest)}"
