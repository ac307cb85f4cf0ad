"""Lines and tables."""


def wrap(text, width):
    """Lines of at most `width` characters. Longer words are cut."""
    if width < 1:
        raise ValueError("width must be at least 1")
    lines, line = [], ""
    for word in text.split():
        while len(word) > width:
            if line:
                lines.append(line)
                line = ""
            lines.append(word[:width])
            word = word[width:]
        if not word:
            continue
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        lines.append(line)
    return lines


def indent(text, by=2, first=None):
    """Each line that is not empty moved to the right; `first` is for the first line."""
    lines = []
    for number, line in enumerate(text.split("\n")):
        amount = first if number == 0 and first is not None else by
        lines.append(" " * amount + line if line.strip() else line)
    return "\n".join(lines)


def align(text, width, how="left"):
    """Pad with spaces. The center leans to the left."""
    room = width - len(text)
    if room <= 0:
        return text
    if how == "left":
        return text + " " * room
    if how == "right":
        return " " * room + text
    if how == "center":
        before = room // 2
        return " " * before + text + " " * (room - before)
    raise ValueError(f"cannot align {how!r}")


def columns(rows, gap=2):
    """A table with columns as wide as their widest cell. Numbers stand to the right."""
    if not rows:
        return ""
    count = max(len(row) for row in rows)
    widths = [0] * count
    for row in rows:
        for number, cell in enumerate(row):
            widths[number] = max(widths[number], len(str(cell)))
    lines = []
    for row in rows:
        cells = []
        for number, cell in enumerate(row):
            how = "right" if isinstance(cell, (int, float)) else "left"
            cells.append(align(str(cell), widths[number], how))
        lines.append((" " * gap).join(cells).rstrip())
    return "\n".join(lines)
