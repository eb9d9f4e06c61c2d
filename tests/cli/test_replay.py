"""`streampack replay` prints the batch that a rank had in a step after a saved state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError, StateError
from tests.support.corpora import byte_tokenizer
from tests.support.program import output_of

SCRIPT = """
from streampack import PackedDataset, sources
from helper import SEQ_LEN

def make(seed=3):
    return PackedDataset(
        sources.Mixture({{"web": "{web}", "books": "{books}"}}, weights={{"web": 2, "books": 1}}),
        seq_len=SEQ_LEN, batch_size=2, lanes=4, seed=seed, tokenizer="{tokenizer}",
    )

def other():
    return make(seed=4)

number = 5
"""


def replay(*arguments: object) -> str:
    return output_of("replay", *arguments)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Two ranks, their states after 3 steps, and the batches of the steps that follow."""
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("web", "books")}
    for name, path in paths.items():
        lines = [json.dumps({"text": f"{name} {i} " + "ab" * (i % 17)}) for i in range(150)]
        path.write_text("\n".join(lines) + "\n")
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(**paths, tokenizer=tmp_path / "tokenizer.json"))
    (tmp_path / "helper.py").write_text("SEQ_LEN = 64\n")
    states, following = [], []
    for rank in range(2):
        dataset = PackedDataset(
            sources.Mixture({n: str(p) for n, p in paths.items()}, weights={"web": 2, "books": 1}),
            seq_len=64, batch_size=2, lanes=4, seed=3,
            tokenizer=str(tmp_path / "tokenizer.json"), topology=Topology(rank, 2),
        )  # fmt: skip
        loader = PackedLoader(dataset)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        states.append(tmp_path / f"state-{rank}.json")
        states[-1].write_text(json.dumps(loader.state_dict()))
        following.append([next(batches) for _ in range(4)])
    return script, states, following


def test_it_prints_the_batch_of_that_step_and_rank(run: Any) -> None:
    script, states, following = run
    for step, rank in ((1, 0), (1, 1), (4, 1)):
        output = replay(
            *states, "--dataset", f"{script}:make", "--step", step, "--rank", rank
        ).splitlines()
        batch = following[rank][step - 1]
        assert output[0] == (
            f"batch {6 + (step - 1) * 2 + rank} of the run, from lane {batch.lane}: "
            f"{batch.num_tokens} tokens, {batch.num_loss_tokens} with loss"
        )
        shown = [
            re.sub(r", \w+, \S+\.jsonl, index \d+, tokens \d+ to \d+:", ":", x) for x in output
        ]
        assert shown[1:] == batch.show(str(script.parent / "tokenizer.json")).splitlines()
        assert sum(" index " in line for line in output) == batch.num_documents


def test_as_json_it_has_place_ids_loss_and_text_of_every_piece(run: Any) -> None:
    script, states, following = run
    shown = replay(*states, "--dataset", f"{script}:make", "--step", 2, "--rank", 1, "--json")
    found, batch = json.loads(shown), following[1][1]
    head = (batch.lane + 4 * batch.step, batch.lane, batch.num_tokens, batch.num_loss_tokens)
    assert tuple(found[name] for name in ("batch", "lane", "tokens", "loss_tokens")) == head
    for number, piece in enumerate(found["pieces"]):
        own = batch.document_ids == number
        assert piece["input_ids"] == batch.input_ids[own].tolist()
        assert piece["loss"] == (batch.labels[own] != -100).tolist()
        assert piece["row"] == int(own.nonzero()[0, 0])
        assert piece["text"] == batch.decode(number, byte_tokenizer())
        assert piece["shard"].endswith(f"{piece['source']}.jsonl")
    assert len(found["pieces"]) == batch.num_documents


def test_other_datasets_and_other_objects_are_refused(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, states, _ = run
    with pytest.raises(StateError):
        replay(*states, "--dataset", f"{script}:other")
    for named in (
        f"{script}:number",
        f"{script}:nothing",
        "make",
        "no_such_file.py:make",
        "no_such_module:make",
    ):
        with pytest.raises(ConfigError):
            replay(*states, "--dataset", named)
    with pytest.raises(ConfigError):
        replay(*states, "--dataset", f"{script}:make", "--rank", 2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError):
        replay(*states, "--dataset", f"{script}:make")


def test_without_a_dataset_a_state_is_described(run: Any) -> None:
    _, states, _ = run
    report = json.loads(replay(*states, "--json"))
    assert report["next batch"] == 6
    assert report["lanes"].startswith("4 of 4")
    assert "next batch: 6" in replay(*states)


def test_a_file_that_holds_no_state_is_named(tmp_path: Path) -> None:
    for content in ("{", "[]", '{"lanes": {}}'):
        (tmp_path / "state.json").write_text(content)
        with pytest.raises(StateError) as caught:
            replay(tmp_path / "state.json")
        assert caught.value.path == str(tmp_path / "state.json")


def test_it_prints_the_batch_that_ranks_share(tmp_path: Path) -> None:
    script, made = tmp_path / "train.py", tmp_path / "state.json"
    script.write_text(
        "from streampack import Buckets, PackedDataset, Topology\n\n"
        "def make(topology=Topology()):\n"
        "    documents = [[n % 90 + 1] * (1 + n * 7 % 61) for n in range(900)]\n"
        "    packer = Buckets(seq_lens=(32, 64), cp=(1, 2), shares=(0.5, 0.5))\n"
        "    return PackedDataset(documents, packer=packer, lanes=4, topology=topology)\n"
    )
    names: dict[str, Any] = {}
    exec(script.read_text(), names)
    loaders = [PackedLoader(names["make"](Topology(rank, 2))) for rank in range(2)]
    given = [iter(loader) for loader in loaders]
    for _ in range(4):
        batches = [next(own) for own in given]
    made.write_text(json.dumps(loaders[1].state_dict()))
    for _ in range(5):
        batches = [next(own) for own in given]
    for rank in range(2):
        shown = replay(
            made, "--dataset", f"{script}:make", "--step", 5, "--rank", rank, "--ranks", 2
        )
        number = batches[rank].step * 4 + batches[rank].lane
        assert shown.startswith(f"batch {number} of the run, from lane {batches[rank].lane}: ")
