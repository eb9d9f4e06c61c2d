"""The loop of docs/clusters.md under torchrun: two agents, a rank that dies, every token once."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streampack import PackedDataset, PackedLoader, Topology
from tests.support.corpora import byte_tokenizer

ROOT = Path(__file__).parents[2]
TRAINED = """
    from json import dumps
    from os import environ, getpid, kill
    with open(f"log-{dist.get_rank()}", "a") as log:
        log.write(dumps([batch.lane, batch.step, batch.num_tokens]) + "\\n")
    if step == 7 and dist.get_rank() == 1 and not Path("killed").exists():
        Path("killed").touch()
        kill(getpid(), 9)
"""


@pytest.mark.docs
def test_the_loop_of_the_page_is_restarted_on_two_agents_and_trains_on_every_token_once(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs").joinpath("clusters.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "train.py").write_text(re.sub(r"    \.\.\.  # .*\n", lambda _: TRAINED, snippet))
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    lines = [json.dumps({"text": "a text " * (1 + i % 13)}) + "\n" for i in range(400)]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    (named,) = re.findall(r"`(TORCH_\w+)=1`", page)
    environment = {**os.environ, named: "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    command += ["--max-restarts", "3", "--local-addr", "127.0.0.1", "train.py"]
    agents = []
    for number in range(2):
        with (tmp_path / f"agent-{number}").open("w") as agent_log:
            agents.append(
                subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env=environment,
                    stdout=agent_log,
                    stderr=subprocess.STDOUT,
                )
            )
    ended = [agent.wait(timeout=600) for agent in agents]
    assert ended == [0, 0], (tmp_path / "agent-0").read_text()[-3000:]
    assert (tmp_path / "killed").exists()
    logged = [json.loads(line) for log in tmp_path.glob("log-*") for line in log.open()]
    dataset = PackedDataset(
        str(tmp_path / "texts.jsonl"), seq_len=64, tokenizer=byte_tokenizer(), topology=Topology()
    )
    loader = PackedLoader(dataset)
    tokens = sum(batch.num_tokens for batch in loader)
    assert sum({(lane, step): n for lane, step, n in logged}.values()) == tokens
    assert len({(lane, step) for lane, step, _ in logged}) < len(logged)  # some were made twice
