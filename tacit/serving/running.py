"""A server from its start to an orderly end: SIGTERM and ^C let what is under way finish, SIGHUP looks for modules again."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.serving.app import make_app
from tacit.serving.aside import leave
from tacit.serving.catalogue import Changes
from tacit.serving.listening import answer_requests
from tacit.serving.service import Service
from tacit.serving.settings import LOOPBACK

TOKEN = "TACIT_SERVE_TOKEN"
LEAST_TOKEN = 8
TAKE_TURNS_S = 2e-4
"""after which Python lets another thread go on. The model's thread lets go at every operation, and by default would wait 5 ms
to go on while requests are read and answered; an operation of a small model takes a fiftieth of that"""


def find_token(file: Path | None, without: bool, host: str) -> str | None:
    """From a file, from the environment, or a new one; none only where nobody else can ask."""
    if without:
        if host not in LOOPBACK:
            raise TacitError(f"--no-token is for this machine alone, and host {host!r} lets others in; leave one of them out.")
        return None
    if file is not None:
        try:
            token = file.expanduser().read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise TacitError(f"cannot read the token from {file}: {error}.") from error
        source = str(file)
    else:
        token, source = os.environ.get(TOKEN, "").strip(), f"${TOKEN}"
        if not token:
            return secrets.token_urlsafe(24)
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise TacitError(f"the token in {source} must have at least {LEAST_TOKEN} printable characters and no space.")
    return token


def serve(service: Service, token: str | None, announce: Callable[[str], None], remark: Callable[[str], None]) -> int:
    """Until it is told to stop. `announce` is given the address once requests are answered, `remark` what SIGHUP changes."""

    async def look_again() -> None:
        remark(in_words(await service.refresh()))

    sys.setswitchinterval(TAKE_TURNS_S)
    app = make_app(service, token)
    return leave(answer_requests(app, service.settings, announce, service.running(), look_again))


def in_words(changes: Changes) -> str:
    told = [f"{what}: {', '.join(names)}" for what, names in vars(changes).items() if names]
    refused = [f"{name}: {why}" for name, why in changes.refused.items()]
    return "\n".join(["; ".join(told) or "modules are as they were", *refused])
