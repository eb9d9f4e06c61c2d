"""The `repr` of objects, and a batch as text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedDataset, Topology, sources
from streampack.errors import ConfigError
from tests.support.chats import CHATML, bpe_tokenizer, messages, write_lines
from tests.support.corpora import byte_tokenizer

TEXTS = ["one text", "another\ntext", "ü"]


def lines(folder: Path) -> str:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return str(path)


def batch_of(source: Any, tokenizer: Any, **options: Any) -> Any:
    dataset = PackedDataset(
        source, tokenizer=tokenizer, topology=Topology(), shuffle=False,
        **{"seq_len": 32, "batch_size": 2, **options},
    )  # fmt: skip
    return next(iter(dataset))


@pytest.mark.parametrize("attention", ["document", "row"])
def test_a_piece_of_a_batch_is_decoded(attention: str) -> None:
    tokenizer = byte_tokenizer()
    batch = batch_of(TEXTS, tokenizer, attention=attention)
    pieces = [batch.decode(i, tokenizer) for i in range(batch.num_documents)]
    assert sorted(piece.removesuffix("<eos>") for piece in pieces) != []
    for text in TEXTS:
        assert any(piece.startswith(text) for piece in pieces)
    with pytest.raises(ConfigError, match="number must be"):
        batch.decode(9, tokenizer)
    with pytest.raises(ConfigError):
        batch.decode(0, 3)


def test_a_batch_shows_its_documents_apart_and_the_learnt_tokens(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "chats.jsonl", [{"messages": messages("who?", "a fox\nof course")}]
    )
    tokenizer = bpe_tokenizer()
    batch = batch_of(sources.Chat(path, template=CHATML), tokenizer, batch_size=1, seq_len=64)
    shown = batch.show(tokenizer, color=False)
    head, document, padding, legend = shown.splitlines()
    assert legend == "(« and » enclose text that carries loss)"
    assert head == "row 0"
    assert document.startswith(f"  document 0, {batch.num_tokens} tokens: <|im_start|>user\\nwho?")
    assert "assistant\\n«a fox\\nof course<|im_end|>»" in document
    assert padding == f"  padding, {64 - batch.num_tokens} slots"
    assert repr(shown) == str(shown)
    colored = batch.show(tokenizer, color=True)
    assert "\x1b[32ma fox" in colored
    assert "«" not in colored
    assert batch.show(tokenizer) == shown  # standard output is no terminal in a test


def test_without_a_tokenizer_ids_are_shown_and_pieces_name_where_they_came_from(
    tmp_path: Path,
) -> None:
    path = lines(tmp_path)
    dataset = PackedDataset(
        path, seq_len=32, batch_size=1, shuffle=False, tokenizer=byte_tokenizer(),
        topology=Topology(),
    )  # fmt: skip
    plain = next(iter(dataset))
    traced = dataset.with_provenance()
    batch = next(iter(traced))
    assert batch.input_ids.equal(plain.input_ids)
    pieces = traced.locate(batch)
    _, first, *_ = batch.show(color=False, pieces=pieces).splitlines()
    ids = batch.input_ids[batch.document_ids == 0].tolist()
    place = f"{path}, index {pieces[0].index}, tokens 0 to {len(ids)}"
    text = f"{ids[0]} «{' '.join(map(str, ids[1:]))}»"
    assert first == f"  document 0, {len(ids)} tokens, {place}: {text}"


def test_a_notebook_shows_html_in_which_texts_are_only_text(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    batch = batch_of(["<b>a & b</b>"], tokenizer, provenance=True, batch_size=1)
    shown: Any = batch.show(tokenizer, pieces=["<somewhere>"])
    html = shown._repr_html_()
    assert "<b>" not in html
    assert "&lt;somewhere&gt;" in html
    learnt = re.findall(r'<span style="color:green">(.*?)</span>', html)
    assert learnt == ["b&gt;a &amp; b&lt;/b&gt;&lt;|endoftext|&gt;"]
    assert html.count("\n") == shown.count("\n") - 1  # of the legend
