"""What is refused, with the status that says so over HTTP."""

from __future__ import annotations

from tacit.core.errors import TacitError

STOPPING = "the server is stopping; ask again once it is back."
"""with status 503"""


class Refused(TacitError):
    """`status` is HTTP's; the message names the value and the remedy."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def not_found(message: str) -> Refused:
    return Refused(404, message)


def out_of_turn(message: str) -> Refused:
    return Refused(409, message)


def gone(message: str) -> Refused:
    return Refused(410, message)


def unusable(message: str) -> Refused:
    return Refused(422, message)


def too_many(message: str) -> Refused:
    return Refused(429, message)
