"""A grid of single characters. Places are (row, column) from the upper left corner."""

MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
DIAGONALS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


class Grid:
    def __init__(self, text):
        self.rows = [list(line) for line in text.strip("\n").split("\n")]
        self.height = len(self.rows)
        self.width = len(self.rows[0])
        if any(len(row) != self.width for row in self.rows):
            raise ValueError("all rows of a grid must be equally long")

    def __getitem__(self, place):
        row, column = place
        return self.rows[row][column]

    def __setitem__(self, place, value):
        row, column = place
        self.rows[row][column] = value

    def __contains__(self, place):
        row, column = place
        return 0 <= row < self.height and 0 <= column < self.width

    def __str__(self):
        return "\n".join("".join(row) for row in self.rows)

    def places(self):
        """All places, row by row."""
        return [(row, column) for row in range(self.height) for column in range(self.width)]

    def find(self, value):
        """The first place with this value, or None."""
        for place in self.places():
            if self[place] == value:
                return place
        return None

    def count(self, value):
        return sum(row.count(value) for row in self.rows)

    def neighbors(self, place, diagonal=False):
        """Places next to this one, within the grid."""
        row, column = place
        steps = list(MOVES.values()) + (list(DIAGONALS) if diagonal else [])
        around = [(row + down, column + right) for down, right in steps]
        return [other for other in around if other in self]

    def is_border(self, place):
        row, column = place
        return row in (0, self.height - 1) or column in (0, self.width - 1)

    def turn(self):
        """The grid turned a quarter to the right."""
        turned = zip(*reversed(self.rows))
        return Grid("\n".join("".join(row) for row in turned))

    def flip(self):
        """The grid mirrored from left to right."""
        return Grid("\n".join("".join(reversed(row)) for row in self.rows))

    def window(self, place, size):
        """The part of the grid up to `size` places away, cut at the border."""
        row, column = place
        top, bottom = max(0, row - size), min(self.height, row + size + 1)
        left, right = max(0, column - size), min(self.width, column + size + 1)
        return Grid("\n".join("".join(line[left:right]) for line in self.rows[top:bottom]))

    def walk(self, place, moves, wall="#"):
        """Where one ends who follows the moves and stays in place before walls and the border."""
        for move in moves:
            down, right = MOVES[move]
            step = (place[0] + down, place[1] + right)
            if step in self and self[step] != wall:
                place = step
        return place


def parse_moves(text):
    """`R3 D2` -> `RRRDD`. A letter without a number is one move."""
    found = ""
    for word in text.split():
        letter, number = word[0].upper(), word[1:]
        if letter not in MOVES:
            raise ValueError(f"{word!r} is no move")
        found += letter * (int(number) if number else 1)
    return found
