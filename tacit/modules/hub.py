"""Modules on the Hugging Face hub: one repository per module, with its card as the model card.

Files travel and are cached by `huggingface_hub`, which also reads the token and the address of the hub (HF_TOKEN, HF_ENDPOINT).
What is pulled is checked as any other module before it is installed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.modules.archive import CARD, SUFFIXES, check_size, prepare_to_share
from tacit.modules.module import MANIFEST, Module


def push(module: Module, repository: str, base_license: str = "", private: bool = False) -> str:
    """Upload a module as the whole content of a repository, which is created if needed. Return the commit."""
    from huggingface_hub import HfApi

    card, hub = prepare_to_share(module, base_license), HfApi()
    with tempfile.TemporaryDirectory(prefix="tacit-push-") as staging, _explain_errors("push to", repository):
        for name in (MANIFEST, *module.files):
            shutil.copyfile(module.path / name, Path(staging) / name)
        (Path(staging) / CARD).write_text(card, encoding="utf-8")
        hub.create_repo(repository, private=private or None, exist_ok=True)
        message = f"Skill module {module.skill} ({module.digest[:12]})"
        done = hub.upload_folder(repo_id=repository, folder_path=staging, commit_message=message, delete_patterns=["*"])
    return done.oid


def pull(repository: str, revision: str, max_bytes: int) -> tuple[Path, str]:
    """Download a repository at one commit. Return its directory in the cache, and the commit. Without a connection (or with
    HF_HUB_OFFLINE=1) it must be in the cache already."""
    from httpx import TransportError
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled

    wanted, commit = [f"*{suffix}" for suffix in SUFFIXES], ""
    with _explain_errors("pull from", repository):
        try:
            info = HfApi().model_info(repository, revision=revision or None, files_metadata=True)
            check_size(sum(file.size or 0 for file in info.siblings or ()), max_bytes, repository)
            commit = info.sha or ""
        except (TransportError, OfflineModeIsEnabled):
            pass
        # By the given revision, not by the commit: the cache then finds it again without a connection.
        path = Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=wanted, local_files_only=not commit)
        )
    if commit and path.name != commit:
        raise TacitError(f"{repository} has changed meanwhile, from commit {commit} to {path.name}; try again.")
    return path, path.name


@contextmanager
def _explain_errors(what: str, repository: str) -> Iterator[None]:
    from httpx import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TacitError(f"cannot {what} the hub's {repository}: {first}") from error
