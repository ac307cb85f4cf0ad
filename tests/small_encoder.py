"""A tiny real sentence encoder."""

from __future__ import annotations

from pathlib import Path

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "numbers", "target", "drawer", "shelf", "pen", "on", "the", *"0123456789"]


def save_encoder(place: Path):
    """(model, tokenizer), saved to `place`."""
    import torch
    import transformers

    place.mkdir(parents=True)
    (place / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer = transformers.BertTokenizer(str(place / "vocab.txt"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), **sizes)).eval()
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return model, tokenizer
