"""Added tokens are cut out of texts as `tokenizers` cuts them, by either engine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Engine

from streampack.documents.blocks import Texts, make_origin
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer
from streampack.tokenization.fast import FastEngine, fast_engine
from tests.support.vocabularies import LLAMA3, QWEN2, deepseek, gpt2, random_texts, trained

pytest.importorskip("gigatoken")

WORDS = (
    "import",
    "COVID",
    "model",
    "'s",
    "token",
    "encodings",
    "xylophone",
    "é",
    "人",
    "in",
    "ing",
)
#: Added to vocabularies that have some of them: tokens in words, that overlap, of spaces, of text
#: that NFC changes.
ADDED: dict[str, list[Any]] = {
    "in words": ["COVID", "token", "model", "'s", "in", "x"],
    "of one another": ["in", "ing", "import", "ort", "port"],
    "that overlap": [
        AddedToken("ode", normalized=False),
        AddedToken("del", normalized=True),
        AddedToken("cod", special=True),
    ],
    "of spaces": [" " * n for n in range(2, 9)] + ["\n\n", "\t"],
    "of other scripts": ["naïve", "人工", "🙂", "Ωmega"],
    "that NFC changes": ["\u212bngstrom", "e\u0301t", AddedToken("u\u0308b", normalized=False)],
}


def with_tokens(engine: Engine, added: list[Any]) -> Engine:
    engine.add_tokens(added)
    return Engine.from_str(engine.to_str())


def texts_with(added: list[Any], seed: int) -> list[str]:
    rng = random.Random(seed)
    tokens = [token if isinstance(token, str) else token.content for token in added]
    parts = [*tokens, *WORDS, " ", "a", "\n", "\u9030", "\u9a6c", "\u00e9"]
    mixed = ["".join(rng.choices(parts, k=25)) for _ in range(200)]
    return [*mixed, *random_texts(seed, 200, tokens)]


def ids(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    made = tokenizer.encode(Texts(texts, make_origin(0, np.arange(len(texts)))), ErrorPolicy())
    return [made.document(i).tolist() for i in range(len(made))]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("split", ["encode", "split"])
@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("kind", ["gpt2", "llama3", "nfc"])
def test_ids_are_equal_with_tokens_added(kind: str, added: str, split: Any) -> None:
    pattern = {"gpt2": None, "llama3": LLAMA3, "nfc": QWEN2}[kind]
    engine = trained(pattern, normalizers.NFC() if kind == "nfc" else None)
    engine = with_tokens(engine, ADDED[added])
    tokenizer = Tokenizer(engine, eos="as-is", special_tokens_in_text=split)
    engine.encode_special_tokens = split == "split"
    assert ids(tokenizer, ["as the proof may not meet them"])
    texts = texts_with(ADDED[added], 5)
    assert ids(tokenizer, texts) == [engine.encode(text).ids for text in texts]
    assert tokenizer._fast is not None or split == "split" or added == "that overlap"


@pytest.mark.parametrize("text", ["é", "Ġimport", "ĊĊ", "Ã©"])
def test_a_token_that_stands_for_other_bytes_in_the_vocabulary_is_left_to_tokenizers(
    text: str,
) -> None:
    engine = trained(None)
    engine.add_tokens([text])
    tokenizer = Tokenizer(engine, eos="as-is")
    texts = [*texts_with([text], 6), "\u9030\u9a6c\u9fff caf\u00e9", "\n\nimport import"]
    assert ids(tokenizer, texts) == [engine.encode(text).ids for text in texts]
    if engine.token_to_id(text) < 1500:  # it had been there
        assert tokenizer._fast is None


def test_special_tokens_in_the_vocabulary_are_text_with_split() -> None:
    engine = trained(LLAMA3)
    described = json.loads(engine.to_str())
    described["model"]["vocab"]["COVID"] = 5000
    engine = Engine.from_str(json.dumps(described))
    engine.add_special_tokens(["COVID"])
    tokenizer = Tokenizer(engine, eos="as-is", special_tokens_in_text="split")
    engine.encode_special_tokens = True
    assert ids(tokenizer, ["COVID", "a COVID-b"]) == [
        engine.encode(text).ids for text in ("COVID", "a COVID-b")
    ]


#: Tokens that a single search finds elsewhere than two do, or finds where none are.
OTHERWISE: list[list[Any]] = [
    [AddedToken("odel", normalized=True), AddedToken("del", normalized=False)],
    [AddedToken("mod", normalized=True), AddedToken("ode", normalized=False)],
    [AddedToken("mo", normalized=False), AddedToken("model", normalized=True)],
    [AddedToken("token", single_word=True)],
    [AddedToken("<keep>", rstrip=True)],
]


@pytest.mark.parametrize("added", OTHERWISE)
def test_tokens_that_a_single_search_finds_elsewhere_are_left_to_tokenizers(
    added: list[Any],
) -> None:
    engine = with_tokens(trained(None), added)
    assert fast_engine(engine, "auto") is None


@pytest.mark.parametrize("added", OTHERWISE[:4])
def test_the_proof_meets_tokens_that_no_text_of_its_sample_holds(added: list[Any]) -> None:
    engine = with_tokens(trained(None), added)
    assert FastEngine(engine, json.loads(engine.to_str())).encode(["plain"]) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vocabulary", [lambda: gpt2()._tokenizer, deepseek])
def test_real_vocabularies_stay_fast_with_tokens_added(vocabulary: Callable[[], Engine]) -> None:
    engine = vocabulary()
    added = ["COVID", "token", "model", "'s", "<tool>", "    ", " the"]
    engine.add_tokens(added)
    tokenizer = Tokenizer(engine, eos="as-is", engine="gigatoken")
    texts = [*texts_with(added, 7), Path(json.__file__).read_text()]
    assert ids(tokenizer, texts) == [engine.encode(t, add_special_tokens=False).ids for t in texts]
    assert tokenizer._fast is not None
