"""The snippets of docs/monitoring.md."""

from __future__ import annotations

import re
import shlex
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedDataset, PackedLoader, Topology, metrics, sources
from tests.support.corpora import byte_tokenizer
from tests.support.program import output_of

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
HEADSPACE, REPORT, RANKS, WANDB, PROMETHEUS = re.findall(
    r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL
)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(metrics, "thread_clock", time.thread_time)
    parts = {name: [[1] * 20] * 8000 for name in ("web", "books")}
    mixture = sources.Mixture(parts, weights={"web": 1, "books": 1})
    dataset = PackedDataset(mixture, seq_len=32, topology=Topology())
    return {"loader": PackedLoader(dataset), "train": lambda batch: time.sleep(0.0001)}


def run(names: dict[str, Any], *parts: str) -> None:
    for snippet in parts:
        exec(compile(snippet, "monitoring.md", "exec"), names)


def test_the_command_of_headspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    byte_tokenizer().save("tokenizer.json")
    Path("texts.jsonl").write_text('{"text": "some words"}\n' * 500)
    (command,) = re.findall(r"```bash\n(.*)\n```", PAGE.read_text())
    program, *arguments = shlex.split(command)
    assert program == "streampack"
    assert "possible gain" in output_of(*arguments, "--steps", 5, "--workers", 0)


def test_the_headspace_of_a_loop(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    run(names, HEADSPACE)
    assert "perfect loader" in capsys.readouterr().out


def test_reports_of_a_rank_and_of_all(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run(names, "import streampack", REPORT)
    assert capsys.readouterr().out.count("rank 0:") == 2  # of 2,000 steps
    run(names, "step = 999", RANKS)
    assert "limit:" in capsys.readouterr().out


def test_weights_and_biases_gets_numbers(
    names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="not in the development environment")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(names, "import streampack; waits = streampack.Waits(loader)", WANDB)
    assert list(tmp_path.glob("wandb/offline-run-*"))


@pytest.fixture
def closed(names: dict[str, Any]) -> Iterator[None]:
    yield
    names["provider"].shutdown()
    names["server"].shutdown()
    names["server"].server_close()


def test_prometheus_reads_the_figures(names: dict[str, Any], closed: None) -> None:
    run(names, "import streampack", PROMETHEUS.replace("9400 +", "0 +"))  # any free port
    with urllib.request.urlopen(f"http://127.0.0.1:{names['server'].server_port}/metrics") as page:
        text = page.read().decode()
    named = re.findall(r"`(streampack_\w+)`", PAGE.read_text())
    assert len(named) == 6
    for name in named:
        assert re.search(rf'^{name}\w*{{.*rank="0"', text, re.MULTILINE), name
    assert re.search(r"^streampack_tokens_total{.*} 320000.0$", text, re.MULTILINE)
