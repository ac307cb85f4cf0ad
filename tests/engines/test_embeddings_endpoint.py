"""Embeddings over HTTP, from a real server on this machine."""

from __future__ import annotations

import numpy as np
import pytest
from chat_server import serving

from tacit.core.errors import TacitError
from tacit.engines.endpoint import BATCH, EmbeddingClient


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch):
    monkeypatch.setattr("tacit.engines.endpoint.PAUSE_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def vector_of(text: str) -> list[float]:
    return [float(len(text)), float(sum(map(ord, text)) % 97), 1.0]


def embedding(body):
    """Vectors in reverse order; each carries the index of its text."""
    data = [{"index": i, "embedding": vector_of(text)} for i, text in enumerate(body["input"])]
    return 200, {"data": data[::-1], "model": body["model"]}


def after(first: int, then):
    """Valid answers to the first requests, then `then`."""
    left = iter(range(first))
    return lambda body: embedding(body) if next(left, None) is not None else then(body)


def test_texts_are_sent_in_batches_and_vectors_keep_their_order(monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sesame")
    texts = [f"text {'x' * (i % 7)} {i}" for i in range(2 * BATCH + 3)]
    with serving(embedding) as server:
        vectors_ND = EmbeddingClient(server.url, "some-model", "SOME_KEY")(texts)
    np.testing.assert_array_equal(vectors_ND, np.array([vector_of(text) for text in texts], np.float32))
    assert [len(request["input"]) for request in server.requests] == [1, BATCH, BATCH, 3]
    assert {request["path"] for request in server.requests} == {"/v1/embeddings"} and set(server.keys) == {"Bearer sesame"}
    assert {request["model"] for request in server.requests} == {"some-model"}


def test_no_key_header_and_no_request_for_empty_input():
    with serving(embedding) as server:
        assert EmbeddingClient(f"{server.url}/embeddings", "m")([]).shape == (0, 3)
    assert server.keys == [None]


def test_transient_errors_are_retried():
    trouble = iter([(429, {"error": "slow down"}), (503, {"error": "loading"}), (0, None)])
    with serving(after(1, lambda body: next(trouble, None) or embedding(body))) as server:
        assert EmbeddingClient(server.url, "m")(["a", "b"]).shape == (2, 3)
    assert len(server.requests) == 5


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, {"error": {"message": "who?"}}), r"refuses the key \(none was sent: \$OPENAI_API_KEY is not set\): 401 who"),
        ((404, {"error": {"message": "what?"}}), r"has no such path or model \(model 'm'\): 404 what"),
        ((400, {"error": {"message": "too long"}}), r"returned no vectors for 1 texts \(model 'm'\): 400 too long"),
        ((200, b"<html>"), "not JSON"),
        ((200, {"data": []}), r"no data\[0..0\].embedding"),
        ((200, {"data": [{"index": 0, "embedding": "AAAA"}]}), "no data|not finite"),
        ((200, {"data": [{"index": 0, "embedding": []}]}), "not finite"),
        ((200, b'{"data": [{"index": 0, "embedding": [NaN]}]}'), "not finite"),
    ],
)
def test_unusable_endpoint_is_refused_when_the_client_is_created(reply, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(lambda body: reply) as server, pytest.raises(TacitError, match=message):
        EmbeddingClient(server.url, "m")
    assert len(server.requests) == 1


def test_later_failure_is_an_error_after_the_retries():
    with serving(after(1, lambda body: (500, {"error": "out of memory"}))) as server:
        encode = EmbeddingClient(server.url, "m", retries=2)
        with pytest.raises(TacitError, match=r"returned no vectors for 1 texts .*500 out of memory"):
            encode(["a"])
    assert len(server.requests) == 4


def test_changed_vector_dimension_is_refused():
    with serving(after(1, lambda body: (200, {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}))) as server:
        encode = EmbeddingClient(server.url, "m")
        with pytest.raises(TacitError, match="vectors of 2 dimensions, but 3 before"):
            encode(["a"])


@pytest.mark.parametrize(
    ("url", "model", "message"), [("localhost:1", "m", "--embedding-url"), ("http://x", "", "--encoder NAME")]
)
def test_invalid_url_or_model_name_is_refused(url, model, message):
    with pytest.raises(TacitError, match=message):
        EmbeddingClient(url, model)


def test_unreachable_server_is_reported():
    with serving(embedding) as server:
        url = server.url
    with pytest.raises(TacitError, match=r"no server answers at .*Is it running"):
        EmbeddingClient(url, "m", retries=1)
