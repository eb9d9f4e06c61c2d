"""Each page of the cookbook is a job: its script runs from top to bottom.

"pretrain.md", "sft.md", "dpo.md", "grpo.md", "images.md", "convert.md", "elastic.md", "slow.md"
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.chats import CHATML, messages, write_lines
from tests.support.corpora import byte_tokenizer
from tests.support.forked import Host
from tests.support.servers import s3_server

FOLDER = Path(__file__).parent.parent / "docs" / "cookbook"
PAGES = sorted(FOLDER.glob("*.md"))
WORDS = (Path(__file__).read_text() * 4).split()
MODEL = {
    "vocab_size": 257,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 2048,
}


def script_of(page: Path) -> str:
    (script,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    return re.sub(r"seq_len=\d{4}", "seq_len=256", script)


def prose(count: int) -> list[str]:
    return [" ".join(WORDS[start : start + 5 + start % 40]) for start in range(count)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the scripts name, but images."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer = byte_tokenizer()
    tokenizer.save("tokenizer.json")
    Path("chatml.jinja").write_text(CHATML)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**MODEL)).save_pretrained("model")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained("model")
    write_lines(Path("texts.jsonl"), [{"text": text} for text in prose(300)])
    for folder in ("chats", "pairs"):
        Path(folder).mkdir()
    chats = [{"messages": messages(*prose(4)[i % 2 :][:2])} for i in range(20)]
    write_lines(Path("chats/0.jsonl"), chats)
    sides = ("prompt", "chosen", "rejected")
    pairs = [dict(zip(sides, prose(20)[i : i + 3], strict=True)) for i in range(9)]
    write_lines(Path("pairs/0.jsonl"), pairs)
    return tmp_path


def run(name: str, **names: Any) -> dict[str, Any]:
    names["__name__"] = "__main__"
    exec(compile(script_of(FOLDER / name), name, "exec"), names)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_script_is_short_and_compiles(page: Path) -> None:
    compile(script_of(page), page.name, "exec")
    assert len(script_of(page).splitlines()) <= 40


@pytest.mark.docs
@pytest.mark.parametrize("name", ["sft.md", "dpo.md", "grpo.md"])
def test_a_script_trains_the_model(files: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    before = AutoModelForCausalLM.from_pretrained("model").state_dict()
    after = run(name)["model"].state_dict()
    assert all(torch.isfinite(weights).all() for weights in after.values())
    assert any(not torch.equal(after[key].cpu(), before[key]) for key in before)


@pytest.mark.docs
@pytest.mark.parametrize("name", ["convert.md", "slow.md"])
def test_a_script_reads_the_whole_corpus(
    files: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name)
    printed = capsys.readouterr().out
    assert ("300 documents" in printed) if name == "convert.md" else ("exposed" in printed)


@pytest.mark.docs
def test_pretraining_reads_a_bucket_and_a_second_start_has_nothing_left(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": prose(60)}), "0.parquet")
    with s3_server() as server:
        body = Path("0.parquet").read_bytes()
        server.client.put_object(Bucket="bucket", Key="fineweb/0.parquet", Body=body)
        run("pretrain.md")
        first = capsys.readouterr().out
        assert "documents=60" in first
        run("pretrain.md")
        assert "documents" not in capsys.readouterr().out


@pytest.mark.docs
def test_a_job_goes_on_with_another_number_of_ranks(files: Path, host: Host) -> None:
    program = files / "train.py"
    text = script_of(FOLDER / "elastic.md").replace("step % 10 == 0", "step % 2 == 0")
    program.write_text(text.replace("init_process_group()", 'init_process_group("gloo")'))
    for ranks in (2, 3):
        statuses, output = host.run_job(program, processes=ranks)
        assert statuses == [0] * ranks, output


@pytest.mark.docs
def test_images_are_packed_and_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.vision import qwen_model, qwen_processor, records

    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    with open("pages.jsonl", "w") as file:
        for i, record in enumerate(records(12)):
            names = [f"{i}-{k}.png" for k in range(len(record["images"]))]
            for name, data in zip(names, record["images"], strict=True):
                Path("photos", name).write_bytes(data)
            file.write(json.dumps({**record, "images": names}) + "\n")
    model = qwen_model("Qwen2VL", embed_dim=16, hidden_size=32, mlp_ratio=2)
    # The tiny model and its processor are made, not read: a processor of files needs torchvision.
    script = script_of(FOLDER / "images.md")
    script = script.replace('AutoModelForImageTextToText.from_pretrained("vlm")', "tiny")
    script = script.replace('AutoProcessor.from_pretrained("vlm")', "reader")
    exec(compile(script, "images.md", "exec"), {"tiny": model, "reader": qwen_processor()})
    printed = re.findall(r"(\d+) documents, loss", capsys.readouterr().out)
    assert sum(map(int, printed)) == 12
