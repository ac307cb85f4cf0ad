"""Share modules: as one file (an uncompressed zip of its directory and a card), or on the Hugging Face hub (one repository per
module, with its card as the model card; `huggingface_hub` reads HF_TOKEN and HF_ENDPOINT and caches files).

module.json lists every other file with its hash, so the archive needs no list of its own. Packing the same module twice gives
the same bytes. What comes from elsewhere is checked before it is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.config.checks import open_world
from tacit.core.errors import TacitError, first_line
from tacit.engines.models.tiny import hash_file
from tacit.modules.export import render_card
from tacit.modules.module import MANIFEST, Module, find_license
from tacit.runs.files import explain_disk_errors

CARD = "README.md"
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")  # names of files and skills: a single path component, not hidden
SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja", ".md")  # tensors and text; nothing that runs when it is read
EPOCH = (1980, 1, 1, 0, 0, 0)


def prepare_to_share(module: Module, base_license: str = "") -> str:
    """Check that a module may be shared (files intact, license known). Return its card."""
    module.check_files()
    check_names(module)
    return render_card(module, find_license(module.base, open_world(module.world), base_license))


def pack(module: Module, file: Path, base_license: str = "") -> str:
    """Write the archive atomically. Return its sha256."""
    card = prepare_to_share(module, base_license)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with explain_disk_errors(file):
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
                for name in (CARD, MANIFEST, *sorted(module.files)):
                    entry = zipfile.ZipInfo(name, EPOCH)
                    entry.external_attr = (stat.S_IFREG | 0o644) << 16
                    if name == CARD:
                        archive.writestr(entry, card)
                        continue
                    with (module.path / name).open("rb") as read, archive.open(entry, "w", force_zip64=True) as written:
                        shutil.copyfileobj(read, written)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
    return hash_file(file)


def unpack(file: Path, out: Path, max_bytes: int) -> None:
    """Extract an archive into `out`. `extractall` writes no links and no more bytes than an entry declares; hashes are checked
    with the module."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            check_size(sum(entry.file_size for entry in archive.infolist()), max_bytes, file)
            for name in names:
                check_name(name, file)
            if len(set(names)) < len(names) or MANIFEST not in names:
                raise TacitError(f"{file} is not a module archive: it has no {MANIFEST}, or contains a file twice.")
            archive.extractall(out)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise TacitError(f"{file} is not a module archive, or is damaged: {error}.") from error


def check_name(name: str, where: object) -> None:
    if not SAFE_NAME.fullmatch(name):
        raise TacitError(f"{where} contains a file with the unsafe name {name!r}; names must not contain a path.")
    if not name.endswith(SUFFIXES):
        raise TacitError(f"{where} contains {name!r}; a module may only contain tensors and text ({', '.join(SUFFIXES)}).")


def check_names(module: Module) -> None:
    """Check the module's skill and file names, since the manifest is untrusted."""
    for name in module.files:
        check_name(name, f"module {module.skill!r}")
    if not SAFE_NAME.fullmatch(module.skill):
        raise TacitError(f"the module's skill {module.skill!r} cannot be used as a directory name.")


def check_size(size: int, max_bytes: int, what: object) -> None:
    if size > max_bytes:
        raise TacitError(f"{what} has {size:,} bytes, more than the limit of {max_bytes:,}; raise it with --max-mb.")


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
        # Ask for the given revision, not the commit, so that the cache finds it again without a connection.
        path = Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=wanted, local_files_only=not commit)
        )
    if commit and path.name != commit:
        raise TacitError(f"{repository} changed during the download, from commit {commit} to {path.name}; try again.")
    return path, path.name


@contextmanager
def _explain_errors(what: str, repository: str) -> Iterator[None]:
    from httpx import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        raise TacitError(f"cannot {what} the hub's {repository}: {first_line(error)}") from error
