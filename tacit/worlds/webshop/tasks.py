"""WebShop tasks, and the generated catalogue. Instructions are generated, or written by people in `human_*`.

The `original_*` splits are in the original's order, for comparison with published numbers: they share products and sentences,
and some goals cannot be won. Elsewhere such goals are left out: even the target product with the requested options scores below
1 (`rectangular` matches the color `tan`, for example).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import NamedTuple

from tacit.core.errors import TacitError, check_split_and_count, unknown
from tacit.core.tasks import parse_panels, shuffle_key
from tacit.core.types import Task
from tacit.worlds.webshop.catalogue import Catalogue, Goal, Instruction, Product, Review
from tacit.worlds.webshop.published import HUMAN_FILE, PUBLISHED, load_published

OPTION_COLORS = ("black", "white", "red", "blue", "green", "navy", "pink", "brown", "purple", "yellow")
_CLOTHES = ("small", "medium", "large", "one size", "petite")
_PACKS = ("1 pack", "2 pack", "4 pack", "6 pack")


class Kind(NamedTuple):
    one: str  # singular, as in titles
    many: str  # plural, as in queries
    family: str
    path: str
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[int, int]


def _kinds(family: str, path: str, options: Mapping[str, tuple[str, ...]], *rows: str) -> list[Kind]:
    """Each row: one | many | lowest price - highest price | attribute, attribute, …"""
    found = []
    for row in rows:
        one, many, prices, attributes = (part.strip() for part in row.split("|"))
        low, _, high = prices.partition("-")
        phrases = tuple(attribute.strip() for attribute in attributes.split(","))
        found.append(Kind(one, many, family, f"{path} › {many}", phrases, options, (int(low), int(high))))
    return found


KINDS: tuple[Kind, ...] = (
    *_kinds(
        "fashion",
        "Clothing › Everyday",
        {"color": OPTION_COLORS, "size": _CLOTHES},
        "backpack|backpacks|20-80|waterproof, lightweight, padded straps, laptop sleeve, easy clean, side pockets, anti theft, "
        "wide opening, quick dry",
        "sweater|sweaters|15-60|machine wash, long sleeve, crew neck, soft knit, hand wash, loose fit, wool blend, "
        "high collar, ribbed cuffs",
        "rain jacket|rain jackets|30-90|waterproof, windproof, hooded, packable, zip pockets, slim fit, taped seams, "
        "long sleeve, fleece lining",
        "pajama set|pajama sets|12-45|machine wash, elastic waist, button front, long sleeve, breathable, cotton blend, "
        "plaid pattern, relaxed fit, deep pockets",
        "running shoe|running shoes|25-95|rubber sole, arch support, memory foam, non slip, breathable, lace up, wide toe, "
        "lightweight, shock absorbing",
        "sun hat|sun hats|10-40|wide brim, foldable, chin strap, quick dry, uv protection, breathable, hand wash, straw weave, "
        "adjustable band",
    ),
    *_kinds(
        "beauty",
        "Beauty › Personal Care",
        {"scent": ("vanilla", "jasmine", "citrus", "unscented", "cedar"), "volume": ("50 ml", "100 ml", "250 ml", "500 ml")},
        "shampoo|shampoos|6-30|sulfate free, dry hair, tea tree, cruelty free, color safe, argan oil, anti dandruff, "
        "travel friendly, daily use",
        "body lotion|body lotions|5-28|fragrance tested, sensitive skin, shea butter, non greasy, long lasting, vegan formula, "
        "fast absorbing, aloe vera, paraben free",
        "face mask|face masks|4-25|clay based, sensitive skin, deep cleansing, cruelty free, hyaluronic acid, oil control, "
        "overnight use, green tea, anti aging",
        "hand soap|hand soaps|3-18|plant based, paraben free, sensitive skin, foaming, refill pouch, moisturizing, "
        "biodegradable, pump bottle, gentle lather",
        "lip balm|lip balms|2-15|bees wax, long lasting, spf protection, cruelty free, shea butter, twist tube, matte finish, "
        "vitamin e, deeply nourishing",
        "bath oil|bath oils|8-35|essential oils, dry skin, relaxing, glass bottle, vegan formula, muscle relief, "
        "coconut based, non staining, paraben free",
    ),
    *_kinds(
        "electronics",
        "Electronics › Accessories",
        {"color": OPTION_COLORS[:6], "style": ("classic", "compact", "deluxe", "travel", "studio")},
        "headphone|headphones|20-140|noise cancelling, wireless, fast charging, foldable, long battery, built in microphone, "
        "over ear, deep bass, water resistant",
        "phone stand|phone stands|6-35|adjustable height, non slip, aluminum alloy, foldable, cable slot, desk clamp, "
        "heavy duty, wide compatibility, rotating base",
        "bluetooth speaker|bluetooth speakers|15-120|waterproof, long battery, stereo sound, fast charging, hands free, "
        "carry strap, light show, dust proof, deep bass",
        "power bank|power banks|12-70|fast charging, high capacity, slim body, dual ports, led display, solar panel, "
        "wireless charging, shock proof, carry pouch",
        "desk lamp|desk lamps|14-80|eye protection, touch control, dimmable, usb port, flexible neck, memory function, "
        "night light, energy saving, clamp mount",
        "webcam|webcams|18-110|full hd, auto focus, privacy cover, built in microphone, plug play, wide angle, low light, "
        "tripod ready, noise cancelling",
    ),
    *_kinds(
        "garden",
        "Home › Living",
        {"color": OPTION_COLORS[:7], "width": ("16 inch", "24 inch", "36 inch", "48 inch")},
        "bar stool|bar stools|35-180|swivel seat, steel frame, easy assemble, padded back, adjustable height, foot rest, "
        "faux leather, space saving, stackable",
        "bookshelf|bookshelves|40-190|easy assemble, solid wood, open storage, wall mounted, steel frame, anti tip, "
        "water resistant, corner fit, industrial design",
        "area rug|area rugs|20-150|machine wash, non slip, stain resistant, soft pile, hand woven, pet friendly, "
        "fade resistant, low pile, vintage design",
        "throw pillow|throw pillows|8-45|hidden zipper, machine wash, memory foam, velvet cover, hypoallergenic, tassel trim, "
        "double sided, outdoor use, fade resistant",
        "plant pot|plant pots|6-55|drainage hole, self watering, ceramic body, outdoor use, matching saucer, lightweight, "
        "frost proof, hand painted, stackable",
        "window curtain|window curtains|15-85|blackout lining, machine wash, thermal insulated, rod pocket, noise reducing, "
        "sheer fabric, easy clean, grommet top, linen texture",
    ),
    *_kinds(
        "grocery",
        "Grocery › Pantry",
        {"flavor": ("honey", "pepper", "garlic", "maple", "ginger"), "size": _PACKS},
        "granola|granolas|4-25|gluten free, non gmo, low sugar, high protein, nut free, whole grain, kosher certified, "
        "resealable bag, dairy free",
        "herbal tea|herbal teas|3-22|caffeine free, organic leaves, individually wrapped, non gmo, loose leaf, fair trade, "
        "plastic free, sugar free, calming blend",
        "trail mix|trail mixes|5-30|gluten free, no salt, high protein, resealable bag, dairy free, organic fruit, "
        "keto friendly, low carb, individually wrapped",
        "pasta sauce|pasta sauces|3-20|low sodium, no preservatives, gluten free, glass jar, vegan recipe, organic tomato, "
        "dairy free, sugar free, slow cooked",
        "olive oil|olive oils|8-60|cold pressed, extra virgin, single origin, glass bottle, kosher certified, unfiltered, "
        "early harvest, dark tin, non gmo",
        "rice cracker|rice crackers|2-16|gluten free, low fat, whole grain, individually wrapped, no msg, baked crisp, "
        "nut free, vegan recipe, low sodium",
    ),
)

BRANDS = (
    "Norvo", "Alpira", "Kestow", "Bramble", "Ostra", "Fennic", "Marlow", "Tindra", "Quillan", "Sorrel", "Vexley", "Hollin",
    "Arvest", "Dunmore", "Ilsa", "Perrin", "Jorvik", "Calder", "Wistan", "Ember",
)  # fmt: skip


GENERATED = "generated"
VERSION = 1  # increased, together with the panel version, whenever the generated catalogue changes
OF_EACH = 20
ATTRIBUTES = 4
CHOICES = (3, 5)  # fewest and most values of an option


@lru_cache(1)
def generated_catalogue() -> Catalogue:
    """600 products, the same on every machine: 20 of each kind, each with four of its kind's nine attributes. One attribute is
    in the title; the description and features list all four, so reading them answers every instruction."""
    rng = Random(f"webshop/catalogue/{VERSION}")
    products: list[Product] = []
    wanted: list[Instruction] = []
    for kind in KINDS:
        met: set[frozenset[str]] = set()
        for brand in BRANDS[:OF_EACH]:
            attributes = rng.sample(kind.attributes, ATTRIBUTES)
            while frozenset(attributes) in met:
                attributes = rng.sample(kind.attributes, ATTRIBUTES)
            met.add(frozenset(attributes))
            product = _product(rng, f"B{100 + len(products)}", kind, brand, tuple(attributes))
            requested = [attributes[0], *rng.sample(attributes[1:], rng.choice((1, 2)))]
            rng.shuffle(requested)
            products.append(product)
            wanted.append(Instruction(product.id, f"Find me {', '.join(requested)} {kind.many}", tuple(requested)))
    return Catalogue(GENERATED, tuple(products), tuple(wanted))


def _product(rng: Random, number: str, kind: Kind, brand: str, attributes: tuple[str, ...]) -> Product:
    options = {}
    for name, values in kind.options.items():
        chosen = rng.sample(values, rng.randint(CHOICES[0], min(CHOICES[1], len(values))))
        options[name] = tuple(value for value in values if value in chosen)
    low, high = kind.prices
    return Product(
        id=number,
        title=f"{brand} {kind.one.title()}, {attributes[0].title()}",
        query=kind.many,
        family=kind.family,
        path=kind.path,
        pricing=(float(rng.randint(low, high)),),
        description=f"{kind.one.capitalize()} by {brand}: {', '.join(attributes)}.",
        features=attributes,
        options=options,
        attributes=attributes,
        reviews=tuple(_review(rng, attributes) for _ in range(rng.randint(0, 2))),
        rating=str(rng.randint(30, 50) / 10),
    )


def _review(rng: Random, attributes: tuple[str, ...]) -> Review:
    score = rng.randint(1, 5)
    attribute = rng.choice(attributes)
    return Review("As described" if score > 2 else "Not for me", str(score), f"It says {attribute}, and it is.")


NAME = "webshop"
FAMILIES = ("beauty", "electronics", "fashion", "garden", "grocery")
_CATALOGUES: Mapping[str, Callable[[], Catalogue]] = {GENERATED: generated_catalogue, PUBLISHED: load_published}
_SOURCES: Mapping[str, tuple[str, bool, bool]] = {
    "train": (GENERATED, False, False),
    "test": (GENERATED, True, False),
    "published_train": (PUBLISHED, False, False),
    "published_test": (PUBLISHED, True, False),
    "human_train": (PUBLISHED, False, True),
    "human_test": (PUBLISHED, True, True),
}  # split -> (catalogue, held out for tests, instructions written by people)
ORIGINAL: Mapping[str, slice] = {
    "original_test": slice(0, 500),
    "original_valid": slice(500, 1500),
    "original_train": slice(1500, None),
}  # split -> which goals of the original's order
SPLITS = (*_SOURCES, *ORIGINAL)


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> list[Task]:
    """`count` goals of the split, the same on every machine. With `families`, fewer if there are not enough."""
    check_split_and_count(NAME, SPLITS, split, count)
    if split in ORIGINAL:
        return _original_tasks(split, count, seed, families)
    name, test, human = _SOURCES[split]
    catalogue = _CATALOGUES[name]()
    if human and not catalogue.human:
        raise TacitError(
            f"{split!r} needs {HUMAN_FILE} next to the product file, with instructions for its products; WebShop's setup.sh "
            "downloads it. `published_train` and `published_test` do not need it."
        )
    every = set(families) >= set(FAMILIES)
    found: list[Task] = []
    for goal in _goals(catalogue, test, human, seed):
        if len(found) == count:
            break
        if (every or goal.family in families) and (name == GENERATED or winnable(catalogue, goal)):
            found.append(_task(catalogue, goal, split, seed))
    if len(found) < count and every:
        raise TacitError(
            f"{count} goals of {split!r} were asked for, but the {name} shop ({catalogue.report}) has {len(found)}."
        )
    return found


def _original_tasks(split: str, count: int, seed: int, families: Sequence[str]) -> list[Task]:
    """Test and validation goals in the original's order; training goals in the seed's."""
    catalogue = load_published()
    every, order = set(families) >= set(FAMILIES), catalogue.published_order
    numbered = [n for n in range(len(order))[ORIGINAL[split]] if every or order[n].family in families]
    if split == "original_train":
        numbered.sort(key=lambda n: shuffle_key(seed, str(n)))
    if len(numbered) < count and every:
        raise TacitError(
            f"{count} goals of {split!r} were asked for, but the published shop ({catalogue.report}) has {len(numbered)}."
        )
    return [replace(_task(catalogue, order[n], split, seed), id=f"{NAME}/{split}/{n}") for n in numbered[:count]]


@lru_cache(65536)
def winnable(catalogue: Catalogue, goal: Goal) -> bool:
    """Whether the target product with the requested options scores 1."""
    chosen = {name or str(place): value for place, (name, value) in enumerate(goal.options)}
    return catalogue.judge(catalogue.by_id[goal.product], chosen, goal).reward == 1.0


def catalogue_of(task: Task) -> Catalogue:
    """The catalogue of a task. Raises TacitError if it has changed since the task was made."""
    name = task.data["catalogue"]
    if name not in _CATALOGUES:
        raise unknown("catalogue of world 'webshop'", str(name), _CATALOGUES)
    catalogue = _CATALOGUES[name]()
    if catalogue.digest != task.data["digest"]:
        raise TacitError(
            f"task {task.id!r} was made for another {name} catalogue ({task.data['digest']}) than the one here "
            f"({catalogue.digest}, {len(catalogue.products)} products): point WEBSHOP_DATA at the files it was made with."
        )
    return catalogue


@lru_cache(8)
def _goals(catalogue: Catalogue, test: bool, human: bool, seed: int) -> tuple[Goal, ...]:
    """All goals of a split in the seed's order, without duplicates."""
    unique = {goal.key: goal for goal in catalogue.goals(test, human)}
    ordered = sorted(unique, key=lambda key: shuffle_key(seed, key))
    return tuple(unique[key] for key in ordered)


def _task(catalogue: Catalogue, goal: Goal, split: str, seed: int) -> Task:
    return Task(
        world=NAME,
        id=f"{NAME}/{split}/{goal.key}",
        family=goal.family,
        split=split,
        seed=seed,
        goal=goal.sentence,
        data={"catalogue": catalogue.name, "digest": catalogue.digest, "goal": goal.to_data()},
    )


PANELS = parse_panels("""
train  16:7e55a8122bce2801 128:fa10c1e5b8c24dcb 256:0b33ad5fc4ffcb01 512:708b2ca2b6a482f9 1024:68fe03adb550e694
test   16:0afcfe540f2c1953 128:4ca1164a39d8d04d 256:e29aafc7658f649e 512:ae303b7fc25f3840 1024:333f9384ae0babff
""")  # split -> number of tasks -> panel hash
