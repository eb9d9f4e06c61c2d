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


def test_wandb_gets_the_metrics(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="not in the development environment")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(WANDB.replace("run.finish()\n", ""), names)
    summary = names["run"].summary
    assert summary["data/batches"] % 10 == 1  # every tenth, from the first one on
    assert summary["data/tokens/web"] > 0
    names["run"].finish()


def test_tensorboard_gets_the_metrics(names: dict[str, Any]) -> None:
    pytest.importorskip("tensorboard", reason="not in the development environment")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(TENSORBOARD, names)
    events = EventAccumulator("runs/1").Reload()
    batches = names["loader"].metrics().batches
    assert [event.value for event in events.Scalars("data/batches")] == [*range(1, batches + 1)]
    assert events.Scalars("data/tokens/web")[-1].value == 800


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
