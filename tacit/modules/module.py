"""A skill module is a directory.

module.json                     everything below: what it is for, what it needs, how good it is, and a hash of every other file
adapter_model.safetensors       a LoRA adapter in peft's format, with adapter_config.json
model.safetensors, …            or a whole model in transformers' format, with its tokenizer, where all parameters were trained
NAME_tracker.py.txt             where its tracker or its rewards were drafted: the draft, which is run behind a fence alone

It is written in one move and never changed afterwards. Reading it imports neither torch nor transformers.
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
from tacit.core.method import Context
from tacit.core.protocols import Sampling
from tacit.core.world import FULL_BLOCK, Environment, version_of
from tacit.engines.models.bases import BASES, checkpoint_directory, hash_file
from tacit.engines.models.tiny import TINY_SIZES, TinySettings
from tacit.modules.carrying import Carried, make_known, read_carried
from tacit.prompts.history import History
from tacit.prompts.state_block import StateBlock

# The model that adapters sit on: how it is named, where it lies, and whether it is the one a module was trained on.


@dataclass(frozen=True)
class Base:
    model: str
    """as `--model` takes it: a tiny size, a directory or a hub id"""
    seed: int = 0
    """of a tiny model's first weights"""
    tiny: TinySettings | None = None
    """sizes, where the model is a tiny one from scratch"""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Base:
        tiny = data.get("tiny")
        return cls(data["model"], data["seed"], TinySettings(**tiny) if tiny else None)

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "seed": self.seed, "tiny": asdict(self.tiny) if self.tiny else None}

    def elsewhere(self, model: str | None) -> Base:
        """The same, or another model named in its place: where it lies on this machine."""
        return self if model in (None, self.model) else Base(model, self.seed)

    def source(self, world: Environment) -> str:
        """The checkpoint's directory, or a hub id."""
        from tacit.engines.models.sources import TEXTS_SEED, find_checkpoint

        texts = world.example_texts
        return find_checkpoint(self.model, self.seed, (lambda: texts(TEXTS_SEED)) if texts is not None else None, self.tiny)

    def fingerprint(self, world: Environment) -> str:
        from tacit.engines.models.bases import checkpoint_directory

        directory = checkpoint_directory(self.source(world))
        files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in directory.iterdir())
        return _fingerprint(directory, tuple(files))


@cache
def _fingerprint(directory: Path, files: tuple[tuple[str, int, int], ...]) -> str:
    """Many modules sit on one base, and reading all of a large one takes a minute: once in a process, while its files
    stay as they are."""
    from tacit.engines.models.bases import fingerprint

    return fingerprint(directory)


MANIFEST = "module.json"
FORMAT = 1
SHAPE: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("world", "skill", "wording", "weights", "digest"), (str,)),
    **dict.fromkeys(("context", "base", "sampling", "scores", "run", "code", "files", "taught", "draft"), (dict,)),
    "families": (list,),
    "tracker": (str, type(None)),
    "max_steps": (int,),
}
"""what module.json holds under each name"""
UNIFIED = "unified"
"""the module that serves every family"""


@dataclass(frozen=True)
class Module:
    path: Path
    world: str
    """as `--world` takes it"""
    skill: str
    families: tuple[str, ...]
    tracker: str | None
    """version of the tracker whose state block it reads; None where it reads none"""
    wording: str
    """version of the wording it reads; the context has its name"""
    context: Mapping[str, Any]
    """what it reads (`prompting.describe_context`)"""
    adapter: bool
    """a LoRA adapter on a base, or a whole model"""
    base: Base
    """what it was trained from; a whole model needs it no more"""
    fingerprint: str
    """of that base"""
    sampling: Sampling
    """how it was measured, and plays unless told otherwise"""
    max_steps: int
    scores: Mapping[str, Mapping[str, Any]]
    """stage (`untrained`, `sft`, `rl`) -> its evaluation there, with interval, panel and hash"""
    digest: str
    """of the trained weights, as the run's checkpoint has it"""
    run: Mapping[str, Any]
    """where it comes from: the run's name, checkpoint and settings"""
    code: Mapping[str, Any]
    """versions of tacit and its libraries"""
    files: Mapping[str, str]
    """name -> sha256 of every other file"""
    taught: Mapping[str, Any] = field(default_factory=dict)
    """of logs it was taught from: how many episodes, whether it practised afterwards, how it does on those kept back"""
    draft: Carried | None = None
    """the drafted tracker or rewards that it was trained with; `world` is then the name of that"""

    @property
    def place(self) -> str:
        """its world, to be read by people"""
        if self.draft is None:
            return self.world
        return f"{self.draft.world or 'work known from logs'} with drafted {self.draft.kind}"

    @property
    def size(self) -> int:
        """bytes on disk"""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "world": self.world,
            "skill": self.skill,
            "families": list(self.families),
            "tracker": self.tracker,
            "wording": self.wording,
            "context": dict(self.context),
            "weights": "adapter" if self.adapter else "model",
            "base": {**self.base.to_json(), "fingerprint": self.fingerprint},
            "sampling": {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self.sampling).items()},
            "max_steps": self.max_steps,
            "scores": {stage: dict(score) for stage, score in self.scores.items()},
            "digest": self.digest,
            "run": dict(self.run),
            "code": dict(self.code),
            "files": dict(self.files),
            **({"taught": dict(self.taught)} if self.taught else {}),
            **({"draft": self.draft.to_json()} if self.draft else {}),
        }

    def damage(self) -> list[str]:
        """What is wrong with its files, each named; empty where all is well."""
        found = []
        for name, expected in self.files.items():
            file = self.path / name
            if not file.is_file():
                found.append(f"{file} is missing")
            elif (there := hash_file(file)) != expected:
                found.append(f"{file} is damaged (sha256 {there}, but {MANIFEST} says {expected})")
        return found

    def check_files(self) -> None:
        if found := self.damage():
            raise TacitError(f"{'; '.join(found)}. Export or train the module anew.")

    def check_tracker(self, world: Environment) -> None:
        tracker = world.trackers.get(self.context.get("form", FULL_BLOCK))
        here = tracker.version if tracker is not None else None
        if self.tracker is not None and self.tracker != here:
            raise TacitError(
                f"module {self.path} was trained with tracker {self.tracker!r}, and world {self.world!r} has "
                f"{f'tracker {here!r}' if here else 'no tracker'} here, whose state block it has not learned to read. Train it "
                "anew, or use the version of tacit that has its tracker (`code` in its module.json)."
            )

    def check_wording(self, world: Environment) -> None:
        """A wording that is not there at all is refused when the context is made."""
        name = self.context["wording"]
        if name in world.wordings and self.wording != (here := version_of(world.wordings[name])):
            raise TacitError(
                f"module {self.path} was trained with version {self.wording!r} of the wording {name!r}, and world "
                f"{self.world!r} has version {here!r} here, which says things it has not learned to read. Train it anew, or "
                "use the version of tacit that has its wording (`code` in its module.json)."
            )

    def check_base(self, base: Base, world: Environment) -> None:
        """A whole model needs its base no more."""
        if self.adapter and self.fingerprint != (here := base.fingerprint(world)):
            raise TacitError(
                f"module {self.path} was trained on base {self.base.model!r} with fingerprint {self.fingerprint}, but base "
                f"{base.model!r} has {here}. Its adapter means nothing there: say where the right base lies (--base-model "
                "MODEL), or train it on this one."
            )


def read_module(path: Path | str) -> Module:
    path = Path(path).expanduser()
    file = path / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        found = data["format"]
        if found == FORMAT:
            return _from_json(path, data)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TacitError(
            f"cannot read the module {file}: {type(error).__name__}: {error}. It is damaged or incomplete."
        ) from error
    raise TacitError(f"the module {file} has format {found!r}; this version of tacit reads format {FORMAT}.")


def is_modules(path: Path) -> bool:
    """Whether a directory is a module or holds some."""
    return (path / MANIFEST).is_file() or (path.is_dir() and any(path.glob(f"*/{MANIFEST}")))


def find_modules(path: Path | str) -> dict[str, Module]:
    """The module that a directory is, or those it holds, by skill."""
    modules: dict[str, Module] = {}
    for place in places_of_modules(path):
        module = read_module(place)
        if module.skill in modules:
            raise TacitError(f"{modules[module.skill].path} and {module.path} are both modules of skill {module.skill!r}.")
        modules[module.skill] = module
    return modules


def places_of_modules(path: Path | str) -> list[Path]:
    """The directory itself where it is a module, or those in it that are; nothing of them is read."""
    path = Path(path).expanduser()
    if (path / MANIFEST).is_file():
        return [path]
    if not path.is_dir():
        raise TacitError(f"there is no directory {path}.")
    # One with a dot is being written, or was left by a process that was killed while writing.
    places = [file.parent for file in sorted(path.glob(f"*/{MANIFEST}")) if not file.parent.name.startswith(".")]
    if not places:
        raise TacitError(f"{path} holds no module: neither it nor a directory in it has a {MANIFEST}.")
    return places


def hash_modules(modules: Collection[Module], fallback: str | None = None) -> str:
    """Of the weights of modules that play together, and of which one stands in for families that have none."""
    if len(modules) == 1 and fallback is None:
        return next(iter(modules)).digest
    lines = [*sorted(f"{module.skill} {module.digest}" for module in modules), f"fallback {fallback}"]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _check_shape(data: dict[str, Any]) -> None:
    """A manifest may be anybody's, and hold anything anywhere."""
    for name, kind in SHAPE.items():
        if name in data and not isinstance(data[name], kind):
            raise TypeError(f"{name} is {str(data[name])[:80]!r}, not {' or '.join(k.__name__ for k in kind)}")
    inside: Sequence[tuple[str, Iterable[Any], tuple[type, ...]]] = (
        ("families", data["families"], (str,)),
        ("files", data["files"].values(), (str,)),
        ("scores", data["scores"].values(), (dict,)),
        ("base.model", [data["base"]["model"]], (str,)),
        ("sampling", [value for name, value in data["sampling"].items() if name != "stop"], (int, float)),
    )
    for name, values, kind in inside:
        if wrong := [value for value in values if not isinstance(value, kind)]:
            raise TypeError(f"{name} has {str(wrong[0])[:80]!r} in it")


def _from_json(path: Path, data: dict[str, Any]) -> Module:
    _check_shape(data)
    sampling = {**data["sampling"], "stop": tuple(data["sampling"].get("stop", ()))}
    draft = read_carried(path, data["draft"]) if "draft" in data else None
    if draft is not None:
        make_known(draft)
    return Module(
        path=path,
        world=data["world"],
        skill=data["skill"],
        families=tuple(data["families"]),
        tracker=data["tracker"],
        wording=data.get("wording", "1"),  # from before wordings had versions
        context=data["context"],
        adapter={"adapter": True, "model": False}[data["weights"]],
        base=Base.from_json(data["base"]),
        fingerprint=data["base"]["fingerprint"],
        sampling=Sampling(**sampling),
        max_steps=data["max_steps"],
        scores=data["scores"],
        digest=data["digest"],
        run=data["run"],
        code=data["code"],
        files=data["files"],
        taught=data.get("taught", {}),
        draft=draft,
    )


# The licence of the model that a module was trained from: whoever passes a module on passes on something made from it.

OWN = "Apache-2.0"
"""of packaged bases and of models from scratch: tacit's own"""
FRONT = re.compile(r"\A---\s*\n.*?^license:\s*(\S[^\n]*)$", re.DOTALL | re.MULTILINE)
"""what the card of a published model begins with"""
TEXTS = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")


def licence_of(base: Base, world: Environment, said: str = "") -> str:
    """`said` where somebody says it; else as the model's own files do."""
    if said:
        return said
    if base.model in BASES or base.model in TINY_SIZES:
        return OWN
    try:
        directory = checkpoint_directory(base.source(world))
    except TacitError as error:
        raise TacitError(f"{error} So its licence cannot be read there: say it with --base-licence NAME.") from error
    found = _by_card(directory / "README.md") or next(filter(None, (_by_text(directory / name) for name in TEXTS)), "")
    if not found:
        raise TacitError(
            f"base {base.model!r} says nothing about its licence (a card README.md with `license:`, or a file LICENSE, in "
            f"{directory}); whoever gets the module must know it: say it with --base-licence NAME."
        )
    return found


def _by_card(file: Path) -> str:
    if not file.is_file():
        return ""
    told = FRONT.search(file.read_text(encoding="utf-8", errors="replace"))
    return told[1].strip().strip("\"'") if told else ""


def _by_text(file: Path) -> str:
    """Its first line that says something."""
    if not file.is_file():
        return ""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip()[:120] for line in lines if line.strip()), "")


# What an agent reads, as data: a module carries the context it was trained in, and no setting can lead it astray.

KINDS: Mapping[str, type[Any]] = {"state_block": StateBlock, "history": History}
PARTS_OF_THE_WORLD = ("wording", "tracker")
"""fields that are the world's own objects: a wording is kept by its name and version, a tracker by its form and version"""


def describe_context(context: Context, world: Environment) -> dict[str, Any]:
    """`{"kind": "state_block", "wording": "terse", "one_step": true, …}`"""
    kind = next((name for name, cls in KINDS.items() if type(context) is cls), None)
    if kind is None:
        raise TacitError(
            f"a module can keep the contexts {', '.join(KINDS)}, and this run's agent reads by {type(context).__name__}; "
            "play it from its run directory instead."
        )
    wording = next((name for name, own in world.wordings.items() if own is context.wording), None)  # type: ignore[attr-defined]
    if wording is None:
        raise TacitError(f"the wording of this run's context is none of world {world.name!r}, so a module could not name it.")
    own = {f.name: getattr(context, f.name) for f in fields(KINDS[kind]) if f.name not in PARTS_OF_THE_WORLD}
    if kind == "state_block":
        form = next((name for name, own in world.trackers.items() if own is context.tracker), None)  # type: ignore[attr-defined]
        if form is None:
            raise TacitError(
                f"the tracker of this run's context is none of world {world.name!r}, so a module could not name it."
            )
        own["form"] = form
    return {"kind": kind, "wording": wording, **own}


def make_context(data: Mapping[str, Any], world: Environment) -> Context:
    """The inverse of `describe_context`, in this version's world."""
    own = dict(data)
    kind = own.pop("kind", "")
    if kind not in KINDS:
        raise unknown("kind of context", kind, KINDS)
    own["wording"] = world.wording(own["wording"])
    if kind == "state_block":
        if world.tracker is None:
            raise TacitError(f"this module reads a tracker's state block, and world {world.name!r} has no tracker here.")
        own["tracker"] = world.tracker_of(own.pop("form", FULL_BLOCK))  # before blocks had forms there was one
    known = {f.name for f in fields(KINDS[kind])}
    for name in own:
        if name not in known:
            raise unknown(f"setting of the context {kind!r}", name, known)
    return KINDS[kind](**own)


def tracker_version(context: Context) -> str | None:
    """Of the tracker whose words the agent reads; None where it reads none."""
    return context.tracker.version if isinstance(context, StateBlock) and context.block else None


def wording_version(context: Context) -> str:
    """Of the words the agent reads."""
    return version_of(context.wording)  # type: ignore[attr-defined]
