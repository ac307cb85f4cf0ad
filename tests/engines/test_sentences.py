"""The sentence encoder, with a tiny real model and with invalid ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from small_encoder import save_encoder

from tacit.core.errors import TacitError
from tacit.engines.local.pooling import SentenceModel


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(directory, model, tokenizer)"""
    place = tmp_path_factory.mktemp("encoders") / "small"
    return place, *save_encoder(place)


def test_sentence_vector_is_the_mean_state_and_independent_of_the_batch(saved, monkeypatch):
    place, model, tokenizer = saved
    texts = ["pen on the drawer", "shelf", "pen on the drawer", "the shelf"]
    monkeypatch.setattr("tacit.engines.local.pooling.BATCH", 3)
    features = SentenceModel(str(place))(texts)
    assert features.shape == (4, 16) and features.dtype == np.float32
    for text, feature in zip(texts, features, strict=True):
        with torch.no_grad():
            alone = model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
        assert np.allclose(feature, alone, atol=1e-5)


def test_invalid_encoder_is_refused_when_loaded(saved, tmp_path):
    with pytest.raises(TacitError, match=r"encoder '/nowhere/at-all': no model at .*Give --encoder"):
        SentenceModel("/nowhere/at-all")
    _, model, tokenizer = saved
    model.save_pretrained(tmp_path / "no-padding")
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, unk_token="[UNK]")
    bare.save_pretrained(tmp_path / "no-padding")
    with pytest.raises(TacitError, match=r"cannot load the sentence encoder.*padding"):
        SentenceModel(str(tmp_path / "no-padding"))
