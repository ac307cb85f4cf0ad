"""A frozen sentence encoder: texts to vectors, for comparing texts by meaning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from tacit.core.errors import TacitError
from tacit.core.trust import is_code_trusted
from tacit.engines.models.bases import find_pretrained
from tacit.engines.models.tiny import no_progress_bars

BATCH = 64


class SentenceModel:
    """A transformers encoder with mean pooling, as in sentence-transformers."""

    def __init__(self, name: str) -> None:
        try:
            place = find_pretrained(name)
            with no_progress_bars():
                self.tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=is_code_trusted())
                self.model = AutoModel.from_pretrained(place, trust_remote_code=is_code_trusted()).eval()
            self(["any text"])  # fail now, not in the middle of a run
        except Exception as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TacitError(
                f"cannot load the sentence encoder {name!r}: {first_line} Give --encoder the directory of a saved encoder, or "
                "use --embedder actor, ngram or identity."
            ) from error

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """[N, D]; batched by length."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        means_ND = np.zeros((len(texts), self.model.config.hidden_size), np.float32)
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            read = self.tokenizer([texts[i] for i in rows], padding=True, truncation=True, return_tensors="pt")
            states_RSD = self.model(**read).last_hidden_state.float()
            mask_RS1 = read["attention_mask"][:, :, None].float()
            means_ND[rows] = ((states_RSD * mask_RS1).sum(1) / mask_RS1.sum(1)).numpy()
        return means_ND
