"""What objects say of themselves, and a batch as text."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from streampack import BestFitDecreasing, PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError
from tests.support.chats import CHATML, bpe_tokenizer, messages, write_lines
from tests.support.corpora import byte_tokenizer, write_mds, write_tar
from tests.support.memory_source import numbered_documents

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


def test_sources_say_what_they_read(tmp_path: Path) -> None:
    path = lines(tmp_path)
    documents = numbered_documents([3, 4])
    folder = write_mds(tmp_path, documents, column="tokens")
    tar = str(tmp_path / "a.tar")
    write_tar(tmp_path / "a.tar", documents)
    assert repr(sources.JSONL(path)) == f"JSONL({path!r})"
    other = tmp_path / "b.jsonl"
    other.write_text(Path(path).read_text())
    listed = sources.JSONL([path, str(other)])
    listed.prepare()
    assert repr(listed) == f"JSONL({path!r}, and 1 more, shards=2)"
    assert repr(sources.MDS(folder, tokens="tokens")) == f"MDS({folder!r})"
    assert repr(sources.WebDataset(tar, tokens="npy")) == f"WebDataset({tar!r})"
    assert repr(sources.Chat(path)) == f"Chat(JSONL({path!r}))"
    assert repr(sources.Iterable(TEXTS)) == "Iterable(list of texts)"
    records = sources.Iterable([{"ids": [1]}], tokens="ids")
    assert repr(records) == "Iterable(list of token ids in 'ids')"
    mixture = sources.Mixture({"web": path, "books": TEXTS}, weights={"web": 1, "books": 1})
    assert repr(mixture) == f"Mixture(web=JSONL({path!r}, shards=1), books=Items(list of 3 texts))"
    assert "secret" not in repr(sources.JSONL("https://user:secret@host/a.jsonl?key=secret"))


def test_datasets_loaders_packers_and_metrics_say_what_they_are(tmp_path: Path) -> None:
    dataset = PackedDataset(
        sources.JSONL(lines(tmp_path)), seq_len=32, tokenizer=byte_tokenizer(), topology=Topology()
    )
    packer = repr(BestFitDecreasing(seq_len=32))
    assert packer.startswith("BestFitDecreasing(seq_len=32")
    said = repr(dataset)
    for words in (packer, "JSONL(", "batch_tokens=256", "lanes=None", "seed=0", "rank=0 of 1"):
        assert words in said
    loader = PackedLoader(dataset, num_workers=0)
    assert repr(loader).endswith("num_workers=0, next_batch=0)")
    assert "lanes=1," in repr(dataset)  # chosen by now
    (batch,) = loader
    assert repr(loader).endswith("next_batch=1)")
    assert "num_documents=3" in repr(batch)
    metrics = loader.metrics()
    assert repr(metrics) == (
        f"Metrics(batches=1, tokens={batch.num_tokens}, documents=3, "
        f"utilisation={metrics.utilisation:.4f})"
    )
    metrics.left.placed = metrics.stepped_over.documents = metrics.skipped = 3
    for name, value in re.findall(r"([\w.]+)=([\d,]+)", repr(metrics)):
        if name != "utilisation":
            assert attrgetter(name)(metrics) == int(value.strip(",").replace(",", ""))
    for value in (dataset, loader, batch, metrics):
        assert len(repr(value)) < 500


@pytest.mark.parametrize("attention", ["document", "row"])
def test_a_piece_of_a_batch_is_decoded(attention: str) -> None:
    tokenizer = byte_tokenizer()
    batch = batch_of(TEXTS, tokenizer, attention=attention)
    pieces = [batch.decode(i, tokenizer) for i in range(batch.num_documents)]
    assert sorted(piece.removesuffix("<eos>") for piece in pieces) != []
    for text in TEXTS:
        assert any(piece.startswith(text) for piece in pieces)
    with pytest.raises(ConfigError, match="Piece 9 was asked for"):
        batch.decode(9, tokenizer)
    with pytest.raises(ConfigError, match="not a tokenizer"):
        batch.decode(0, 3)


def test_a_batch_shows_its_documents_apart_and_what_is_learnt(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "chats.jsonl", [{"messages": messages("who?", "a fox\nof course")}]
    )
    tokenizer = bpe_tokenizer()
    batch = batch_of(sources.Chat(path, template=CHATML), tokenizer, batch_size=1, seq_len=64)
    shown = batch.show(tokenizer, color=False)
    head, document, padding, legend = shown.splitlines()
    assert legend == "(« and » enclose what carries loss)"
    assert head == "row 0"
    assert document.startswith(f"  document 0, {batch.num_tokens} tokens: <|im_start|>user\\nwho?")
    assert "assistant\\n«a fox\\nof course<|im_end|>»" in document
    assert padding == f"  padding, {64 - batch.num_tokens} slots"
    assert repr(shown) == str(shown)
    colored = batch.show(tokenizer, color=True)
    assert "\x1b[32ma fox" in colored
    assert "«" not in colored
    assert batch.show(tokenizer) == shown  # standard output is no terminal in a test


def test_documents_of_ids_are_shown_with_a_tokenizer_of_any_kind(tmp_path: Path) -> None:
    engine = byte_tokenizer()
    engine.save(str(tmp_path / "tokenizer.json"))
    batch = batch_of([[104, 105], [106, 107, 108]], None)
    by_path = batch.show(tmp_path / "tokenizer.json")
    assert by_path == batch.show(engine)
    assert by_path.count("document ") == 2


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


def test_control_characters_are_visible() -> None:
    tokenizer = byte_tokenizer()
    batch = batch_of(["a\rb\x1b[2Jc\td\x00"], tokenizer, batch_size=1)
    shown = batch.show(tokenizer, color=False)
    assert r"a«\rb\x1b[2Jc\td\x00" in shown
    assert not set(shown) & set("\r\x1b\t\x00")
