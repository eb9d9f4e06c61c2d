"""The snippets of docs/monitoring.md, with the libraries themselves."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
WANDB, TENSORBOARD, PROMETHEUS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    parts = {name: [[1] * 20] * 40 for name in ("web", "books")}
    mixture = sources.Mixture(parts, weights={"web": 1, "books": 1})
    return {"loader": PackedLoader(PackedDataset(mixture, seq_len=32, topology=Topology()))}


def run(snippet: str, names: dict[str, Any]) -> None:
    exec(compile(snippet, "monitoring.md", "exec"), names)
    assert names["loader"].metrics().as_dict()["tokens/web"] == 800


def test_prometheus_reads_the_metrics(names: dict[str, Any]) -> None:
    pytest.importorskip("prometheus_client", reason="not in the development environment")
    run(PROMETHEUS.replace("9400 +", "0 +"), names)  # any port that is free
    server = names["server"]
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
        text = answer.read().decode()
    server.shutdown()
    server.server_close()
    assert 'streampack{name="tokens"} 1600.0' in text
    assert 'streampack{name="tokens/books"} 800.0' in text
