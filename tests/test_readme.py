"""Every snippet of the README and of the pages about use runs, with a real S3 server and files."""

from __future__ import annotations

import functools
import gzip
import io
import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch

from examples.own_parts import make_table
from streampack import PackedDataset, PackedLoader
from tests.support.chats import CHATML, messages, write_lines
from tests.support.corpora import byte_tokenizer, write_mds, write_tar
from tests.support.flat_files import write_datatrove, write_megatron
from tests.support.program import output_of
from tests.support.servers import s3_server

README = Path(__file__).parent.parent / "README.md"
PAGES = [
    README,
    *(
        README.parent / "docs" / f"{name}.md"
        for name in (
            *("quickstart", "sources", "storage", "packers", "order", "loops"),
            *("converting", "resume"),
            *("ledger", "fields", "rollouts", "trees", "chat", "balance"),
        )
    ),
]
#: Pages with tests of their own for their snippets, in these files.
OTHERS = {
    "check.md": "tests/checking/test_page.py",
    "design.md": "tests/test_worked_example.py",
    "extending.md": "tests/test_readme.py",
    "migration.md": "tests/test_migration.py",
    "consumers.md": "tests/frameworks/test_consumers_page.py",
    "monitoring.md": "tests/watching/test_page.py",
    "media.md": "tests/images/test_page.py",
    "clusters.md": "tests/job/test_clusters_page.py",
    "families.md": "tests/frameworks/test_routers.py",
    "sharding.md": "tests/job/test_sharding_page.py",
    **{
        f"{name}.md": "tests/test_cookbook.py"
        for name in ("pretrain", "sft", "dpo", "grpo", "images", "convert", "elastic", "slow")
    },
}


def snippets(language: str, page: Path = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def prose(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    words = Path(__file__).read_text().split()
    sizes = np.exp(rng.normal(3.5, 1.0, count)).astype(int) + 1
    return [" ".join(rng.choice(words, size)) for size in sizes]


@pytest.fixture
def corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The files and buckets the README names, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chatml.jinja").write_text(CHATML)
    (tmp_path / "lines.txt").write_text("\n".join(prose(30, 3)))
    (tmp_path / "chats").mkdir()
    chats = [{"messages": messages(*prose(4, seed))} for seed in range(20)]
    write_lines(tmp_path / "chats" / "0.jsonl", chats)
    (tmp_path / "pairs").mkdir()
    sides = [
        dict(zip(("prompt", "chosen", "rejected"), prose(3, i), strict=True)) for i in range(9)
    ]
    write_lines(tmp_path / "pairs" / "0.jsonl", [{**pair, "margin": 0.5} for pair in sides])
    (tmp_path / "data").mkdir()
    (tmp_path / "shards").mkdir()
    texts = [
        {"text": t, "url": f"https://a.b/{i}", "score": i, "domain": ("web", "forum")[i % 2]}
        for i, t in enumerate(prose(60, 1))
    ]
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    (tmp_path / "texts.jsonl").write_text(lines)
    loader = PackedLoader(PackedDataset("texts.jsonl", seq_len=64, tokenizer="tokenizer.json"))
    next(iter(loader))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    (tmp_path / "texts").mkdir()
    pq.write_table(pa.table({"text": prose(20, 4)}), "texts/0.parquet")
    with zipfile.ZipFile(Path(__file__).with_name("tables") / "delta.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    (tmp_path / "unpacked" / "table").rename(tmp_path / "pages")
    (tmp_path / "growing").mkdir()
    for name in ("00", "01", "10"):
        (tmp_path / "growing" / f"{name}.jsonl").write_text(lines)
    (tmp_path / "train.py").write_text(
        "from streampack import PackedDataset\n\n\ndef make_dataset():\n"
        "    return PackedDataset('texts.jsonl', seq_len=64, tokenizer='tokenizer.json')\n"
    )
    (tmp_path / "my_loader.py").write_text(
        "import torch\n\n\ndef make_loader(documents):\n"
        "    rows = [torch.tensor([document]) for document in documents]\n"
        "    return [{'input_ids': row, 'labels': row} for row in rows]\n"
    )
    (tmp_path / "data" / "0.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    rng = np.random.default_rng(2)
    for number in range(4):
        documents = [rng.integers(0, 250, n).astype(np.uint16) for n in range(1, 400, 40)]
        write_tar(tmp_path / "shards" / f"shard-{number:03d}.tar", documents)
    (tmp_path / "mds").mkdir()
    ids = [rng.integers(0, 250, n).astype(np.uint16) for n in range(1, 2000, 100)]
    folder = Path(write_mds(tmp_path / "mds", ids, column="tokens"))
    for name in ("megatron", "nanogpt", "datatrove"):
        (tmp_path / name).mkdir()
    write_megatron(tmp_path / "megatron" / "corpus_text_document", [[d] for d in ids], "uint16")
    np.concatenate([np.append(d, 50256) for d in ids]).astype("<u2").tofile("nanogpt/train.bin")
    write_datatrove(tmp_path / "datatrove" / "0.ds", ids)
    (tmp_path / "saved").mkdir()
    feather.write_feather(pa.table({"input_ids": ids}), "saved/0.arrow")
    with s3_server() as server:
        for number in range(2):
            buffer = io.BytesIO()
            table = pa.table(
                {"text": prose(20, number), "repo": [f"repository {n % 7}" for n in range(20)]}
            )
            pq.write_table(table, buffer)
            put(server.client, f"fineweb/{number}.parquet", buffer.getvalue())
        for file in folder.iterdir():
            put(server.client, f"tokens/{file.name}", file.read_bytes())
        yield


def needs_jax(snippet: str) -> bool:
    """Such snippets are run by tests/frameworks/test_jax.py."""
    return "import jax" in snippet


def put(client: Any, key: str, content: bytes) -> None:
    client.put_object(Bucket="bucket", Key=key, Body=content)


@functools.cache  # so that pages with the same loop try the model once
def tiny_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=2048,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.docs
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_snippet_runs(page: Path, corpora: None) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "model": tiny_llama(), "device": "cpu"}
    found = snippets("python", page)
    assert found
    for snippet in found:
        if not needs_jax(snippet):
            shorter = re.sub(r"seq_len=\d{4}", "seq_len=512", snippet)
            exec(compile(shorter, page.name, "exec"), names)
    if "loss" in names:
        assert torch.isfinite(names["loss"])


def test_every_page_with_code_has_a_test_that_runs_it() -> None:
    found = {page.name for page in README.parent.glob("docs/**/*.md") if snippets("python", page)}
    assert found == {page.name for page in PAGES if page != README} | OTHERS.keys()
    for page, file in OTHERS.items():
        assert f'"{page}"' in (README.parent / file).read_text()


def test_the_first_lines_print_the_readmes_output(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(snippets("python")[0], "README.md", "exec"), {})
    assert capsys.readouterr().out == snippets("text")[0]


def test_it_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_the_snippets_about_own_parts_run_and_match_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_table(tmp_path / "documents.sqlite", count=2000)
    example = (README.parent / "examples" / "own_parts.py").read_text()
    found = snippets("python", README.parent / "docs" / "extending.md")
    names: dict[str, Any] = {}
    for snippet in found:
        exec(compile(snippet, "extending.md", "exec"), names)
    definitions = [snippet for snippet in found if snippet.startswith(("class ", "def "))]
    assert len(definitions) == 3
    for definition in definitions:
        assert definition in example
    assert names["batch"].num_documents > 0


@pytest.mark.docs
def test_the_commands_it_names_exist(corpora: None) -> None:
    root = README.parent
    pages = [README, *README.parent.glob("docs/**/*.md")]
    blocks = [block for page in pages for block in snippets("bash", page)]
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    for module in {command[2] for command in lines if command[:2] == ["python", "-m"]}:
        run = [sys.executable, "-m", module, "--help"]
        subprocess.run(run, check=True, cwd=root, capture_output=True)
    for command in lines:
        if command[:1] == ["bash"]:
            assert (root / command[1]).is_file()
        elif command[:1] == ["streampack"]:
            output_of(*command[1:])
