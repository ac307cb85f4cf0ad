"""One class of ScienceWorld's simulator, mended: things hash by their number.

`EnvObject.equals` compares numbers, but `hashCode` is the JVM's own, drawn at random. So the order of things in a set differs
from run to run; and where all hashes are made equal, a set is a list, and a step takes longer. Here the class is given

    public int hashCode() { return (int) uuid; }

in a copy of its class file, which the JVM finds before the jar's (the format: JVM specification, chapter 4).
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from tacit.core.errors import TacitError

NAME = "scienceworld.struct.EnvObject"
_FILE = f"{NAME.replace('.', '/')}.class"
_TEXT, _WIDE = 1, (5, 6)
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 18: 4}
"""tag of a constant -> its bytes; a text has its length before it"""


def lay_out(jar: Path, directory: Path) -> None:
    """Write the mended class where a classpath that begins with this directory finds it."""
    try:
        with zipfile.ZipFile(jar) as archive:
            mended = hashed_by(archive.read(_FILE), "uuid")
    except (OSError, KeyError, struct.error, zipfile.BadZipFile) as error:
        raise TacitError(f"{jar} is not the simulator of scienceworld 1.2.3: {_FILE} could not be read ({error}).") from error
    (directory / _FILE).parent.mkdir(parents=True)
    (directory / _FILE).write_bytes(mended)


def hashed_by(compiled: bytes, field: str) -> bytes:
    """The class with a `hashCode` that is the value of one of its fields, a long."""
    (count,) = struct.unpack_from(">H", compiled, 8)
    end, at = 10, 1
    while at < count:
        tag = compiled[end]
        end += 3 + struct.unpack_from(">H", compiled, end + 1)[0] if tag == _TEXT else 1 + _SIZES[tag]
        at += 2 if tag in _WIDE else 1
    own, _, interfaces = struct.unpack_from(">HHH", compiled, end + 2)
    methods = _after_members(compiled, end + 8 + 2 * interfaces)

    name, kind, code, value, long, both, taken = range(count, count + 7)
    texts = (word.encode() for word in ("hashCode", "()I", "Code", field, "J"))
    constants = b"".join(struct.pack(">BH", _TEXT, len(text)) + text for text in texts)
    constants += struct.pack(">BHHBHH", 12, value, long, 9, own, both)
    body = struct.pack(">BBHBB", 0x2A, 0xB4, taken, 0x88, 0xAC)  # aload_0, getfield, l2i, ireturn
    method = struct.pack(">HHHHHIHHI", 1, name, kind, 1, code, len(body) + 12, 2, 1, len(body)) + body + bytes(4)

    (there,) = struct.unpack_from(">H", compiled, methods)
    head = compiled[:8] + struct.pack(">H", count + 7) + compiled[10:end] + constants
    return head + compiled[end:methods] + struct.pack(">H", there + 1) + method + compiled[methods + 2 :]


def _after_members(compiled: bytes, at: int) -> int:
    """Where a list of fields ends."""
    (members,) = struct.unpack_from(">H", compiled, at)
    at += 2
    for _ in range(members):
        (attributes,) = struct.unpack_from(">H", compiled, at + 6)
        at += 8
        for _ in range(attributes):
            at += 6 + struct.unpack_from(">I", compiled, at + 2)[0]
    return at
