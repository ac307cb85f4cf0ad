"""Resources of a run: declared while a method is built, loaded once before training starts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.calibration import calibration_file, read_calibration
from tacit.config.recipe import PolicyRecipe, Recipe, describe_base
from tacit.config.values import to_data
from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.core.method import Base, Context, Encode, Resources, Thing
from tacit.core.protocols import LEARNING, ModelSource, Policy, check_hooks
from tacit.core.seeds import derive
from tacit.core.trust import check_endpoint
from tacit.core.world import Environment
from tacit.engines import get_engine
from tacit.engines.models.bases import FOLDER, TEXTS_SEED, base_named
from tacit.engines.models.tiny import cache_root

# Facts about a model that need no loading: size, depth, calibration.

HASHED_BYTES = 1 << 16  # bytes hashed at each end of a weights file


def describe_model(recipe: Recipe, world: Environment) -> Base:
    base = describe_base(recipe.model, recipe.tiny, recipe.engine_name)
    return replace(base, layers=count_layers(recipe), calibrated=read_calibration(calibration_path(recipe, world)))


def count_layers(recipe: Recipe) -> int | None:
    """None for a model that is not on this machine."""
    if recipe.tiny is not None:
        return recipe.tiny.layers
    named = base_named(recipe.model)
    config = _config(FOLDER / named if named else Path(recipe.model).expanduser()) or {}
    layers = config.get("num_hidden_layers") or (config.get("text_config") or {}).get("num_hidden_layers")
    return int(layers) if layers else None


def check_layers(recipe: Recipe, layers: Sequence[int]) -> None:
    """Raise if the model lacks one of these layers, as far as that is known before it is loaded."""
    depth = count_layers(recipe) if layers else None
    if depth is not None:
        from tacit.engines.local.pooling import check_layer

        for layer in layers:
            check_layer(layer, depth)


def calibration_path(recipe: Recipe, world: Environment) -> Path:
    """File of the calibration of a model in a world with a prompt. Hidden states depend on all three."""
    base = base_named(recipe.model)
    path = Path(base or recipe.model).expanduser()
    config = None if base else _config(path)
    model: Any = base or recipe.model if config is None else config  # a directory may be moved and stays the same model
    identity = {
        "model": model,
        "weights": "" if base else _digest(path),
        "tiny": to_data(recipe.tiny) if recipe.tiny else None,
        "world": world.name,
        "context": _identity(recipe.settings.context(world)),
    }
    return calibration_file(cache_root(), f"{path.name}-{world.name}", identity)


def _digest(path: Path) -> str:
    """The digest stored with our checkpoints, or a partial hash of other weights."""
    for file in (path / "policy.json", path.parent / "policy.json"):
        if file.is_file():
            try:
                return str(read_json(file).get("digest", ""))
            except (OSError, ValueError, AttributeError):
                return ""
    # Names, sizes, first and last bytes of the weight files; reading them whole would take too long.
    seen = hashlib.sha256()
    files = sorted([*path.glob("*.safetensors"), *path.glob("*.bin")]) if path.is_dir() else []
    for file in files:
        with file.open("rb") as opened:
            size = file.stat().st_size
            seen.update(f"{file.name} {size}".encode() + opened.read(HASHED_BYTES))
            opened.seek(max(0, size - HASHED_BYTES))
            seen.update(opened.read(HASHED_BYTES))
    return seen.hexdigest()[:16] if files else ""


def _identity(context: Context) -> dict[str, Any]:
    """Everything that the text of a prompt depends on: the context's type and settings, its wording and tracker."""
    own: dict[str, Any] = {"kind": type(context).__name__}
    for name, value in vars(context).items():
        plain = value is None or isinstance(value, bool | int | float | str)
        own[name] = value if plain else [type(value).__name__, getattr(value, "version", "")]
    return own


def _config(path: Path) -> dict[str, Any] | None:
    for file in (path / "config.json", path / "model" / "config.json"):
        if file.is_file():
            try:
                return read_json(file)
            except (OSError, ValueError):
                return None
    return None


# Sentence encoders: local, or behind an endpoint.


def load_encoder(name: str, url: str = "", key_variable: str = "OPENAI_API_KEY") -> Encode:
    """A model at `url`, or a directory or hub id."""
    if url:
        from tacit.engines.endpoint import EmbeddingClient

        return EmbeddingClient(url, name, key_variable)
    from tacit.engines.local.pooling import SentenceModel

    return SentenceModel(name)


class RunResources(Resources):
    def __init__(self, recipe: Recipe, worlds: Sequence[Environment]) -> None:
        self.recipe, self._worlds = recipe, worlds
        self._encoders: dict[tuple[str, ...], Any] = {}
        """by (model,) or (model, url, key variable)"""
        self._layers: set[int] = set()
        self._policies: dict[str, None] = {}
        self._helpers: dict[str, Any] = {}  # by name; filled by `open`, like `policies`
        self._shared: dict[str, tuple[Hashable, Any]] = {}
        self.policies: dict[str, Policy] = {}
        """policies other than the trained one, by name; filled by `open`"""

    def sentences(self, model: str, *endpoint: str) -> Encode:
        place = model, *endpoint
        self._encoders.setdefault(place, None)
        return lambda texts: self._encoders[place](texts)

    def policy(self, name: str) -> Callable[[], Policy]:
        self._policies[name] = None
        return lambda: self.policies[name]

    def helper(self, name: str) -> Callable[[], Policy]:
        self._helpers.setdefault(name)
        return lambda: self._helpers[name]

    def directory(self, name: str) -> Path:
        return self.recipe.out / name

    def shared(self, name: str, like: Hashable, make: Callable[[], Thing]) -> Thing:
        if name not in self._shared:
            self._shared[name] = (like, make())
        first, thing = self._shared[name]
        if first != like:
            raise TacitError(
                f"the worlds of a run share its {name}, but [worlds.…] gives it different settings; move them out of [worlds]."
            )
        return thing

    @property
    def same_start(self) -> frozenset[str]:
        """Policies without settings of their own: they start from the trained policy's weights."""
        return frozenset(self._policies.keys() - self.recipe.policies.keys())

    def check_learns(self, name: str, remedy: str) -> None:
        policy = self.recipe.policies.get(name)
        if policy is not None and LEARNING not in get_engine(policy.engine_name).capabilities:
            raise TacitError(f"[policies.{name}]: engine {policy.engine_name!r} cannot train. {remedy}")

    def check_layer(self, layer: int) -> None:
        self._layers.add(layer)

    def check_policies(self) -> None:
        """Raise if [policies] names a policy that the methods do not use."""
        used, method = [*self._policies, *self._helpers], self.recipe.method
        for name in self.recipe.policies:
            if name not in used:
                names = f"it uses {', '.join(used) or 'none'}"
                raise TacitError(f"[policies.{name}]: method {method!r} does not use a policy of that name; {names}.")

    def open(self) -> Policy:
        """Load the trained policy and all declared resources. Raises if something is missing."""
        recipe = self.recipe
        policy = load_policy(recipe.main, recipe.train.seed, self._worlds)
        for layer in self._layers:
            policy.check_layer(layer)
        for names, loaded in ((self._policies, self.policies), (self._helpers, self._helpers)):
            for name in names:
                with prefix_errors(name):
                    own = recipe.policies.get(name, recipe.main)
                    loaded[name] = load_policy(own, derive(recipe.train.seed, name), self._worlds)
                loaded[name].check_answers()
        for place in self._encoders:
            if len(place) > 1:
                check_endpoint(*place[1:])
            self._encoders[place] = load_encoder(*place)
        return policy


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    try:
        yield
    except TacitError as error:
        raise TacitError(f"[policies.{name}]: {error}") from error


def load_policy(policy: PolicyRecipe, seed: int, worlds: Sequence[Environment]) -> Policy:
    """The untrained policy. A tiny model trains its tokenizer on the worlds' text."""
    sources = [world for world in worlds if world.example_texts is not None]
    texts = (lambda: [text for world in sources for text in world.texts(TEXTS_SEED)]) if sources else None
    loaded = get_engine(policy.engine_name).load(ModelSource(policy.model, seed, texts, policy.tiny), policy.engine)
    return check_hooks(loaded)
