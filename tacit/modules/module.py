"""A skill module is a directory.

module.json                     its purpose, requirements and scores, a hash of every other file, and one of itself
adapter_model.safetensors       a LoRA adapter in peft's format, with adapter_config.json
model.safetensors, …            or, after full-parameter training, a model in transformers' format with its tokenizer
NAME_tracker.py.txt             the draft, if its tracker or rewards were drafted; runs only in the sandbox

It is written atomically and never changed afterwards. Reading it imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, unknown
from tacit.core.files import read_json
from tacit.core.method import Context
from tacit.core.protocols import Sampling
from tacit.core.world import FULL_BLOCK, Environment
from tacit.engines.models.bases import (
    BASES,
    TEXTS_SEED,
    check_adapter,
    check_sizes,
    check_templates,
    check_tokenizer,
    checkpoint_directory,
    find_checkpoint,
    fingerprint,
)
from tacit.engines.models.tiny import TINY_SIZES, TinySettings, hash_file
from tacit.modules.carrying import register_draft
from tacit.modules.drafting.packaged import PackagedDraft, read_packaged_draft
from tacit.prompts.history import History, StateBlock

MANIFEST = "module.json"
MAX_MANIFEST = 1 << 22  # bytes
FORMAT = 1
FIELD_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("world", "skill", "wording", "weights", "digest", "sha256"), (str,)),
    **dict.fromkeys(("context", "base", "sampling", "scores", "run", "code", "files", "taught", "draft"), (dict,)),
    "families": (list,),
    "tracker": (str, type(None)),
    "max_steps": (int,),
}  # types of the fields of module.json
UNIFIED = "unified"  # the skill of a module that serves every family


@dataclass(frozen=True)
class Base:
    """The model that an adapter was trained on."""

    model: str  # name for `--model`: a tiny size, a directory or a hub id
    seed: int = 0  # of a tiny model's initial weights
    tiny: TinySettings | None = None  # sizes of a tiny model trained from scratch

    def with_model(self, model: str | None) -> Base:
        """This base at another path or hub id; unchanged if `model` is None."""
        return self if model in (None, self.model) else Base(model, self.seed)

    def source(self, world: Environment) -> str:
        """The checkpoint's directory, or a hub id."""
        return find_checkpoint(
            self.model, self.seed, (lambda: world.texts(TEXTS_SEED)) if world.example_texts is not None else None, self.tiny
        )

    def fingerprint(self, world: Environment) -> str:
        directory = checkpoint_directory(self.source(world))
        files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in directory.iterdir())
        return _fingerprint(directory, tuple(files))


@cache
def _fingerprint(directory: Path, files: tuple[tuple[str, int, int], ...]) -> str:
    """Cached while the files' names, sizes and times stay the same: hashing a large base takes a minute."""
    return fingerprint(directory)


@dataclass(frozen=True)
class Module:
    path: Path
    world: str  # name for `--world`
    skill: str
    families: tuple[str, ...]
    tracker: str | None  # version of the tracker whose state block it reads; None if it reads none
    wording: str  # version of its wording; `context` has the name
    context: Mapping[str, Any]  # how its prompts are built (`describe_context`)
    adapter: bool  # True: a LoRA adapter on a base; False: a full model
    base: Base  # the model it was trained from
    fingerprint: str  # of the base
    sampling: Sampling  # as in its evaluation
    max_steps: int
    scores: Mapping[str, Mapping[str, Any]]  # stage (`untrained`, `sft`, `rl`) -> evaluation with interval, panel and hash
    digest: str  # of the trained weights, as in the run's checkpoint
    run: Mapping[str, Any]  # name, checkpoint and settings of the run that made it
    code: Mapping[str, Any]  # versions of tacit and its libraries
    files: Mapping[str, str]  # name -> sha256 of every other file
    from_logs: Mapping[str, Any] = field(default_factory=dict)
    """if it imitated logs: number of episodes, whether RL followed, agreement with held-out episodes"""
    draft: PackagedDraft | None = None  # the drafted tracker or rewards it was trained with; `world` is then the draft's world

    @property
    def display_world(self) -> str:
        """name of its world for display"""
        if self.draft is None:
            return self.world
        return f"{self.draft.world or 'work from logs'} with drafted {self.draft.kind}"

    @property
    def size(self) -> int:
        """bytes on disk"""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())

    def to_json(self) -> dict[str, Any]:
        data = {
            "format": FORMAT,
            "world": self.world,
            "skill": self.skill,
            "families": list(self.families),
            "tracker": self.tracker,
            "wording": self.wording,
            "context": dict(self.context),
            "weights": "adapter" if self.adapter else "model",
            "base": {**asdict(self.base), "fingerprint": self.fingerprint},
            "sampling": {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self.sampling).items()},
            "max_steps": self.max_steps,
            "scores": {stage: dict(score) for stage, score in self.scores.items()},
            "digest": self.digest,
            "run": dict(self.run),
            "code": dict(self.code),
            "files": dict(self.files),
            **({"taught": dict(self.from_logs)} if self.from_logs else {}),
            **({"draft": self.draft.to_json()} if self.draft else {}),
        }
        return {**data, "sha256": hash_manifest(data)}

    def find_damage(self) -> list[str]:
        """One message per missing, changed or unsafe file, and one if the manifest does not match its own hash."""
        problems = []
        manifest = read_json(self.path / MANIFEST)
        if (actual := hash_manifest(manifest)) != (expected := manifest.get("sha256")):
            problems.append(
                f"{self.path / MANIFEST} was changed after it was written (sha256 {actual}, but it says {expected})"
            )
        for name, expected in self.files.items():
            file = self.path / name
            if not file.is_file():
                problems.append(f"{file} is missing")
            elif (actual := hash_file(file)) != expected:
                problems.append(f"{file} is damaged (sha256 {actual}, but {MANIFEST} says {expected})")
        for check in () if problems else (check_adapter,) if self.adapter else (check_sizes, check_tokenizer, check_templates):
            try:
                check(self.path)
            except TacitError as error:
                problems.append(str(error).rstrip("."))
        return problems

    def check_files(self) -> None:
        if problems := self.find_damage():
            raise TacitError(f"{'; '.join(problems)}. Export or train the module again.")

    def find_mismatches(self, world: Environment, base: str | None = None) -> list[str]:
        """How its tracker, context, wording and base differ from this machine's. `base` overrides the base's path; a full
        model does not need its base."""
        mismatches, name, own = list[str](), str(self.context.get("wording")), self.base.with_model(base)
        remedy = "Train the module again, or use the version of tacit that has its"
        tracker = world.trackers.get(self.context.get("form", FULL_BLOCK))
        current = tracker.version if tracker is not None else None
        if self.tracker is not None and self.tracker != current:
            mismatches.append(
                f"module {self.path} was trained with tracker {self.tracker!r}, but world {self.world!r} has "
                f"{f'tracker {current!r}' if current else 'no tracker'} here. {remedy} tracker (`code` in its module.json)."
            )
        try:
            make_context(self.context, world)  # reports an unknown wording, too
            if self.wording != (current := world.wordings[name].version):
                mismatches.append(
                    f"module {self.path} was trained with version {self.wording!r} of wording {name!r}, but world "
                    f"{self.world!r} has version {current!r} here. {remedy} wording (`code` in its module.json)."
                )
        except TacitError as error:
            mismatches.append(str(error))
        try:
            if self.adapter and self.fingerprint != (current := own.fingerprint(world)):
                mismatches.append(
                    f"module {self.path} was trained on base {self.base.model!r} with fingerprint {self.fingerprint}, but base "
                    f"{own.model!r} has {current}. Name the right base (--base-model MODEL), or train the module on this one."
                )
        except TacitError as error:
            mismatches.append(str(error))
        return mismatches


def hash_manifest(data: Mapping[str, Any]) -> str:
    """The hash of a manifest without its own hash, whatever the order and spacing."""
    hashed = {name: value for name, value in data.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def read_module(path: Path | str) -> Module:
    path = Path(path).expanduser()
    file = path / MANIFEST
    try:
        if file.stat().st_size > MAX_MANIFEST:
            raise ValueError(f"it has more than {MAX_MANIFEST:,} bytes")
        data = read_json(file)
        version = data["format"]
        if version == FORMAT:
            return _from_json(path, data)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise TacitError(
            f"cannot read the module {file}: {type(error).__name__}: {error}. It is damaged or incomplete; export it again."
        ) from error
    raise TacitError(f"the module {file} has format {version!r}; this version of tacit reads format {FORMAT}.")


def has_modules(path: Path) -> bool:
    """Whether a directory is a module or contains modules."""
    return (path / MANIFEST).is_file() or (path.is_dir() and any(path.glob(f"*/{MANIFEST}")))


def find_modules(path: Path | str) -> dict[str, Module]:
    """The module at `path`, or all modules in it, by skill."""
    modules: dict[str, Module] = {}
    for directory in find_module_directories(path):
        module = read_module(directory)
        if module.skill in modules:
            raise TacitError(f"{modules[module.skill].path} and {module.path} are both modules of skill {module.skill!r}.")
        modules[module.skill] = module
    return modules


def find_module_directories(path: Path | str) -> list[Path]:
    """`path` if it is a module, else the modules in it. Reads nothing."""
    path = Path(path).expanduser()
    if (path / MANIFEST).is_file():
        return [path]
    if not path.is_dir():
        raise TacitError(f"the directory {path} does not exist.")
    # Dot directories are still being written, or were left by a killed process.
    directories = [file.parent for file in sorted(path.glob(f"*/{MANIFEST}")) if not file.parent.name.startswith(".")]
    if not directories:
        if (path / "settings.json").is_file():
            raise TacitError(f"{path} is a run; export it first: `tacit modules export {path} --out DIR`, then name DIR.")
        raise TacitError(f"{path} contains no module: neither it nor a directory in it has a {MANIFEST}.")
    return directories


def hash_modules(modules: Collection[Module], fallback: str | None = None) -> str:
    """Hash of the weights of several modules and of the fallback skill. A single module has its own digest."""
    if len(modules) == 1 and fallback is None:
        return next(iter(modules)).digest
    lines = [*sorted(f"{module.skill} {module.digest}" for module in modules), f"fallback {fallback}"]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _from_json(path: Path, data: dict[str, Any]) -> Module:
    """Build a module from its manifest. Types are checked first, since the manifest is untrusted."""
    for name, kind in FIELD_TYPES.items():
        if name in data and not isinstance(data[name], kind):
            raise TypeError(f"{name} is {str(data[name])[:80]!r}, not {' or '.join(k.__name__ for k in kind)}")
    nested: Sequence[tuple[str, Iterable[Any], tuple[type, ...]]] = (
        ("families", data["families"], (str,)),
        ("files", data["files"].values(), (str,)),
        ("scores", data["scores"].values(), (dict,)),
        ("base.model", [data["base"]["model"]], (str,)),
        ("run.settings", [data["run"]["settings"]], (dict,)),
        ("run.checkpoint", [data["run"]["checkpoint"]], (str,)),
        ("sampling", numbers := [value for name, value in data["sampling"].items() if name != "stop"], (int, float)),
    )
    for name, values, kind in nested:
        if wrong := [value for value in values if not isinstance(value, kind)]:
            raise TypeError(f"{name} contains {str(wrong[0])[:80]!r}")
    for score in data["scores"].values():
        low, high = score["interval"]
        numbers += (score["success"], score["episodes"], low, high)
        if not (isinstance(score["panel"], str) and isinstance(score["panel_hash"], str)):
            raise TypeError(f"scores contains {str(score)[:80]!r}")
    for number in numbers:
        float(number + 0)  # raises for text and for integers beyond a float
    sampling = {**data["sampling"], "stop": tuple(data["sampling"].get("stop", ()))}
    draft = read_packaged_draft(path, data["draft"]) if "draft" in data else None
    if draft is not None:
        register_draft(draft)
    tiny = data["base"].get("tiny")
    copied_fields = ("world", "skill", "tracker", "wording", "context", "max_steps", "scores", "digest", "run", "code", "files")
    return Module(
        path=path,
        families=tuple(data["families"]),
        adapter={"adapter": True, "model": False}[data["weights"]],
        base=Base(data["base"]["model"], data["base"]["seed"], TinySettings(**tiny) if tiny else None),
        fingerprint=data["base"]["fingerprint"],
        sampling=Sampling(**sampling),
        from_logs=data.get("taught", {}),
        draft=draft,
        **{name: data[name] for name in copied_fields},
    )


# License of the base model. A module is derived from its base, so sharing it is subject to that license.

OWN_LICENSE = "Apache-2.0"  # license of packaged bases and of models trained from scratch
LICENSE_FIELD = re.compile(r"\A---[ \t]*\n.*?^license:[ \t]*(\S[^\n]*)$", re.DOTALL | re.MULTILINE)
"""in the front matter of a model card"""
LICENSE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")


def find_license(base: Base, world: Environment, override: str = "") -> str:
    """`override`, else what the model card says, else the first line of its license file."""
    if override:
        return override
    if base.model in BASES or base.model in TINY_SIZES:
        return OWN_LICENSE
    try:
        directory = checkpoint_directory(base.source(world))
    except TacitError as error:
        raise TacitError(f"{error} So its license cannot be read; state it with --base-license NAME.") from error

    def read(name: str) -> str:
        file = directory / name
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    if match := LICENSE_FIELD.search(read("README.md")):
        return match[1].strip().strip("\"'")
    lines = (line.strip()[:120] for name in LICENSE_FILES for line in read(name).splitlines())
    if first := next(filter(None, lines), ""):
        return first
    raise TacitError(
        f"base {base.model!r} states no license (README.md with `license:`, or a file LICENSE, in {directory}). Whoever "
        "gets the module must know it: state it with --base-license NAME."
    )


# The prompt builder as data, so that a module always reads the prompts it was trained on.

KINDS: Mapping[str, type[Any]] = {"state_block": StateBlock, "history": History}
WORLD_FIELDS = ("wording", "tracker")  # fields that are objects of the world; stored by name and version


def describe_context(context: Context, world: Environment) -> dict[str, Any]:
    """`{"kind": "state_block", "wording": "terse", "one_step": true, …}`"""
    kind = next((name for name, cls in KINDS.items() if type(context) is cls), None)
    if kind is None:
        raise TacitError(
            f"a module can store the contexts {', '.join(KINDS)}, but this run uses {type(context).__name__}; play it from its "
            "run directory instead."
        )
    wording = next((name for name, wording in world.wordings.items() if wording is context.wording), None)
    if wording is None:
        raise TacitError(f"cannot export: this run's wording is not registered in world {world.name!r}.")
    described = {f.name: getattr(context, f.name) for f in fields(KINDS[kind]) if f.name not in WORLD_FIELDS}
    if kind == "state_block":
        form = next((name for name, tracker in world.trackers.items() if tracker is context.tracker), None)
        if form is None:
            raise TacitError(f"cannot export: this run's tracker is not registered in world {world.name!r}.")
        described["form"] = form
    return {"kind": kind, "wording": wording, **described}


def make_context(data: Mapping[str, Any], world: Environment) -> Context:
    """The inverse of `describe_context`, in this version's world."""
    arguments = dict(data)
    kind = arguments.pop("kind", "")
    if kind not in KINDS:
        raise unknown("kind of context", kind, KINDS)
    arguments["wording"] = world.wording(arguments["wording"])
    if kind == "state_block":
        if world.tracker is None:
            raise TacitError(f"this module reads a tracker's state block, but world {world.name!r} has no tracker here.")
        arguments["tracker"] = world.tracker_of(arguments.pop("form", FULL_BLOCK))  # older modules have no `form`
    settings = {f.name for f in fields(KINDS[kind])}
    for name in arguments:
        if name not in settings:
            raise unknown(f"setting of the context {kind!r}", name, settings)
    return KINDS[kind](**arguments)
