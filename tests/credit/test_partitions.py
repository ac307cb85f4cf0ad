"""Partitions and embedders: hand-computed labels, comparison with slow references, refused input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepwise import make_group, make_step, seen, slow_cosine, slow_similarity

from tacit.core.errors import TacitError
from tacit.credit.partitions import (
    ActorHidden,
    Clusters,
    HashNgram,
    Identity,
    SameKey,
    SentenceEncoder,
    SimilarObservation,
    by_cosine,
    by_history,
    by_key,
    by_similarity,
    median_cluster_size,
    search_radius,
)


def test_labels_are_numbered_in_order_of_appearance():
    assert by_key(["b", "a", "b", "c", "a"]).tolist() == [0, 1, 0, 2, 1]
    assert by_key([]).tolist() == []


def test_same_key_compares_only_the_observation_text():
    group = make_group([[make_step("x", "go"), make_step("y")], [make_step("x", "look")]])
    assert SameKey()([group])[0].tolist() == [0, 1, 0]


def test_similar_text_joins_the_first_matching_part():
    texts = ["You see a red box 1.", "You see a red box 2.", "Nothing here.", "You see a red bag 3."]
    assert by_similarity(texts, 0.9).tolist() == [0, 0, 1, 2]
    assert by_similarity(texts, 0.8).tolist() == [0, 0, 1, 0]
    assert SimilarObservation(0.9)([make_group([[make_step(t) for t in texts]])])[0].tolist() == [0, 0, 1, 2]


@given(st.lists(st.text("ab ", max_size=12), max_size=12), st.sampled_from([0.5, 0.75, 0.95, 1.0]))
def test_similarity_partition_matches_slow_reference(texts, threshold):
    assert by_similarity(texts, threshold).tolist() == slow_similarity(texts, threshold)


def test_history_partition_matches_hand_computed_labels():
    #        x y x | x y | y x      last two:  - xy yx - xy - yx
    keys, trajectory_N = list("xyxxyyx"), np.array([0, 0, 0, 1, 1, 2, 2])
    assert by_history(keys, trajectory_N, 1).tolist() == [0, 1, 0, 0, 1, 1, 0]
    assert by_history(keys, trajectory_N, 2).tolist() == [-1, 0, 1, -1, 0, -1, 1]
    assert by_history(keys, trajectory_N, 3).tolist() == [-1, -1, 0, -1, -1, -1, -1]
    with pytest.raises(TacitError, match="k = 0"):
        by_history(keys, trajectory_N, 0)


def test_cosine_clustering_matches_hand_computed_labels():
    def at(degrees):
        return [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]

    # 1 − cos 20° = 0.060, 1 − cos 30° = 0.134. The second joins and moves the centroid to 10°. So 38° is 28° away and not
    # within 0.1. Then 30° is nearer to 38° than to 10°.
    features = np.array([at(0), at(20), at(38), at(30)])
    assert by_cosine(features, 0.1).tolist() == [0, 0, 1, 1]
    assert by_cosine(features, 0.12).tolist() == [0, 0, 0, 0]
    assert by_cosine(features, 0.0).tolist() == [0, 1, 2, 3]
    assert by_cosine(7 * features, 0.1).tolist() == [0, 0, 1, 1], "lengths do not matter"
    assert by_cosine(np.array([[1.0, 0.0], [-1.0, 0.0]]), 2.0).tolist() == [0, 0], "2 is everything"
    assert by_cosine(np.zeros((0, 3)), 0.1).tolist() == []


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 150), st.integers(2, 24), st.integers(1, 30), st.sampled_from([0.02, 0.1, 0.3, 1.0]), st.integers(0, 999))
def test_cosine_clustering_matches_algorithm_1_in_double_precision(n, width, kinds, epsilon, seed):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(kinds, width))
    features = (centers[rng.integers(kinds, size=n)] + 0.15 * rng.normal(size=(n, width))).astype(np.float32)
    expected = slow_cosine(features, epsilon)
    if _borderline(features, epsilon):
        return  # a distance within rounding of the radius may fall on either side
    assert by_cosine(features, epsilon).tolist() == expected
    assert by_cosine(list(features), epsilon).tolist() == expected


@given(st.integers(1, 60), st.integers(8, 200), st.integers(1, 12), st.integers(0, 999))
def test_radius_zero_groups_equal_features(n, width, kinds, seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(kinds, width))[rng.integers(kinds, size=n)]
    assert by_cosine(features, 0.0).tolist() == by_key([row.tobytes() for row in features]).tolist()


def _borderline(features, epsilon) -> bool:
    return slow_cosine(features, epsilon - 2e-6) != slow_cosine(features, epsilon + 2e-6)


@pytest.mark.parametrize("epsilon", [-0.1, 2.5, float("nan")])
def test_radius_outside_cosine_range_is_refused(epsilon):
    with pytest.raises(TacitError, match="between 0"):
        by_cosine(np.eye(2), epsilon)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_or_infinite_feature_error_names_the_step(value):
    features = np.ones((70, 4))
    features[60, 2] = value
    with pytest.raises(TacitError, match="step 60 of a group holds NaN or infinite"):
        by_cosine(features, 0.1)


def test_zero_feature_vector_is_refused():
    with pytest.raises(TacitError, match="all zeros"):
        by_cosine(np.zeros((3, 4)), 0.1)


@settings(deadline=None)
@given(st.lists(st.text("abcdefgh", min_size=1, max_size=30), min_size=1, max_size=8))
def test_identity_embedder_at_radius_zero_is_the_exact_partition(members):
    group = seen(*members)
    (clusters,) = Clusters(Identity(), 0.0)([group], None)
    assert clusters.tolist() == SameKey()([group])[0].tolist()


def test_hidden_states_are_read_from_completions():
    group = make_group([[make_step("a", hidden=[1, 0]), make_step("b", hidden=[0.99, 0.1])], [make_step("c", hidden=[0, 1])]])
    assert Clusters(ActorHidden(-2), 0.1)([group], None)[0].tolist() == [0, 0, 1]


class Recorder:
    """An encoder that records its calls."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, int, str]] = []

    def hidden_states(self, prompts, layer, pooling="last"):
        self.requests.append((len(prompts), layer, pooling))
        return np.array([[len(p), 1.0] for p in prompts], np.float32)


def test_only_missing_hidden_states_are_computed():
    encoder = Recorder()
    groups = [make_group([[make_step("a", hidden=[1, 0]), make_step("bb")]]), make_group([[make_step("ccc")]])]
    features = ActorHidden(-2)(groups, encoder)
    assert encoder.requests == [(2, -2, "last")]
    assert [[row.tolist() for row in rows] for rows in features] == [[[1, 0], [3, 1]], [[4, 1]]]
    ActorHidden(-2, "mean")(groups, encoder)
    assert encoder.requests[-1] == (2, -2, "mean"), "the prefill returned the state with the pooling of the method"
    with pytest.raises(TacitError, match="2 steps have no hidden states"):
        ActorHidden(-2)(groups, None)


def test_hashed_ngrams_are_closer_for_similar_texts():
    embed = HashNgram()
    a, b, c = embed.texts(["You see a mug 1.", "You see a mug 2.", "go to fridge"])
    cosine = lambda u, v: u @ v / np.linalg.norm(u) / np.linalg.norm(v)  # noqa: E731
    assert cosine(a, b) > 0.75 > 0.2 > cosine(a, c)
    assert embed.texts([""])[0].any(), "no text is without a direction"
    # "ab" with padding: ..a .ab ab. b..  -> four trigrams, in their crc32 buckets
    assert embed.texts(["ab"])[0].sum() == 4
    assert np.flatnonzero(embed.texts(["ab"])[0]).tolist() == [37, 154, 560, 1006]


def test_sentence_encoder_encodes_each_text_once():
    calls = []

    def encode(texts):
        calls.append(list(texts))
        return np.array([[len(text), 1.0] for text in texts])

    groups = [
        make_group([[make_step("aa"), make_step("b")], [make_step("aa")]]),
        make_group([[make_step("b")]]),
        make_group([]),
    ]
    features = SentenceEncoder(encode)(groups)
    assert calls == [["aa", "b"]]
    assert [rows.tolist() for rows in features] == [[[2, 1], [1, 1], [2, 1]], [[1, 1]], []]
    assert [part.tolist() for part in Clusters(SentenceEncoder(encode), 0.0)(groups, None)] == [[0, 1, 0], [0], []]
    with pytest.raises(TacitError, match="built without one"):
        SentenceEncoder()(groups)


def test_median_cluster_size_covers_all_groups():
    assert median_cluster_size([np.array([0, 0, 0, 1]), np.array([0, 0])]) == 2.0
    assert median_cluster_size([]) == 0.0


def test_radius_search_reaches_target_median_size():
    rng = np.random.default_rng(0)
    groups = []
    for _ in range(3):
        centers = rng.normal(size=(20, 64))
        groups.append(np.repeat(centers, 6, axis=0) + 0.3 * rng.normal(size=(120, 64)))
    epsilon, median = search_radius(groups)
    assert 0.02 <= epsilon <= 0.40 and 4 <= median <= 8
    assert median == median_cluster_size([by_cosine(rows, epsilon) for rows in groups])


def kinds_apart(distance: float) -> np.ndarray:
    """Ten kinds of six equal steps; any two kinds have this cosine distance: (1, a eₖ) with a² / (1 + a²) = distance."""
    a = (distance / (1 - distance)) ** 0.5
    return np.repeat(np.concatenate([np.ones((10, 1)), a * np.eye(10)], axis=1), 6, axis=0)


def members_apart(distance: float) -> np.ndarray:
    """Ten orthogonal kinds with six members each; members of a kind have this cosine distance."""
    a = (distance / (1 - distance)) ** 0.5
    return np.concatenate([np.repeat(np.eye(10), 6, axis=0), a * np.eye(60)], axis=1)


@pytest.mark.parametrize(
    ("features", "radius", "probes"),
    [
        (kinds_apart(0.5), 0.21, 1),  # the middle of 0.02 and 0.40 is good enough
        (kinds_apart(0.10), 0.0675, 3),  # 0.21 and 0.115 give a single cluster
        (kinds_apart(0.03), 0.0259375, 6),  # as many probes as in the paper
        (members_apart(0.30), 0.305, 2),  # 0.21 gives only singletons
        (kinds_apart(0.01), 0.000625, 7),  # all six give one cluster; the geometric mean of 0.02 / 1024 and 0.02 does not
        (kinds_apart(0.0005), 0.02 / 2**7.5, 8),
    ],
)
def test_radius_search_bisects_until_the_target(features, radius, probes, monkeypatch):
    tried = []
    monkeypatch.setattr(
        "tacit.credit.partitions.by_cosine", lambda rows, epsilon: tried.append(epsilon) or by_cosine(rows, epsilon)
    )
    assert search_radius([features]) == (pytest.approx(radius), 6.0)
    assert len(tried) == probes and tried[-1] == pytest.approx(radius)


def test_radius_search_falls_back_to_the_closest_radius():
    apart = np.eye(16)  # every distance is 1, beyond any radius of the search
    epsilon, median = search_radius([apart])
    assert median == 1.0 and epsilon == pytest.approx(0.21), "all probes miss alike, so the first one stays"
    together = np.ones((40, 3))
    assert search_radius([together]) == (pytest.approx(0.21), 40.0), "no narrower one is better"
