"""`streampack where` says where a run is, and names what it reads."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from streampack import PackedDataset, PackedLoader, Topology, WindowConfig, sources
from streampack.errors import ConfigError, StateError
from streampack.packing import BestFitDecreasing
from streampack.run.state import RunState
from tests.support.corpora import byte_tokenizer, write_mds
from tests.support.flat_files import write_datatrove, write_megatron
from tests.support.forged import sign
from tests.support.memory_source import MemorySource, numbered_documents
from tests.support.program import output_of

SEQ_LEN = 32


def run(*arguments: object) -> str:
    return output_of("where", *arguments)


def make(source: Any, rank: int = 0, ranks: int = 1, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN),
        "batch_rows": 1,
        "window": WindowConfig(rows=10),
        "topology": Topology(rank, ranks),
        "lanes": 4,
    }
    return PackedDataset(source, **{**values, **options})


def ids(seed: int, count: int = 300) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 250, n).astype(np.uint16) for n in rng.integers(2, 60, count)]


def saved(folder: Path, name: str, dataset: PackedDataset, steps: int) -> Path:
    loader = PackedLoader(dataset)
    for _, _batch in zip(range(steps), loader, strict=False):
        pass
    path = folder / f"{name}.json"
    path.write_text(json.dumps(loader.state_dict()))
    return path


def rows(output: str) -> list[list[str]]:
    """Lines of the table that begin with a number, in columns."""
    lines = [line.split() for line in output.splitlines()]
    return [line for line in lines if len(line) > 5 and line[0].isdecimal()]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return write_mds(tmp_path, ids(1), column="tokens")


def test_the_place_it_names_is_where_the_oldest_document_of_the_window_is_read(
    corpus: str, tmp_path: Path
) -> None:
    """In reading order, lane by lane, the place is inside the block of that document."""
    block = 10
    source = sources.MDS(
        corpus, column="tokens", reading=sources.Reading(open_shards=1, block_documents=block)
    )
    loader = PackedLoader(make(source, lanes=1, shuffle=False, provenance=True))
    starts = np.concatenate([[0], np.cumsum(source.manifest.details["documents"])])
    oldest: list[int] = []
    states = []
    for batch in loader:
        records = batch.provenance
        assert records is not None
        oldest.append(int((starts[records["shard"]] + records["index"]).min(initial=300)))
        states.append(loader.state_dict())
    named = 0
    for i in range(0, len(states), 9):
        emitted = states[i]["lanes"]["0"]["emitted"]
        first = min(oldest[i - emitted + 1 :])
        path = tmp_path / "state.json"
        path.write_text(json.dumps(states[i]))
        output = run(path, "--source", corpus)
        if "the end" in output:
            continue
        named += 1
        words = re.search(r"(document (\d+)|the beginning) of\s+(\S+)", output)
        assert words, output
        shard = list(source.manifest.paths).index(f"{corpus}/{words[3]}")
        place = int(starts[shard]) + int(words[2] or 0)
        assert place <= first < place + 2 * block
    assert named > 10


def test_the_states_of_all_ranks_are_read_as_one(corpus: str, tmp_path: Path) -> None:
    source = sources.MDS(corpus, column="tokens")
    paths = [saved(tmp_path, str(rank), make(source, rank, 2), 6) for rank in range(2)]
    output = run(*paths)
    assert "Next is batch 12 of the run: step 3 of lane 0." in output
    assert "Source: MDS, manifest" in output
    assert "rows of 32, batches of 32 tokens, a window of 10 rows." in output
    assert "4 lanes, seed 0, shuffled." in output
    assert [line[:2] for line in rows(output)] == [[str(lane), "3"] for lane in range(4)]
    state = json.loads(paths[1].read_text())
    waiting = [str(state["lanes"][lane]["documents"]) for lane in ("1", "3")]
    assert [rows(output)[lane][2] for lane in (1, 3)] == waiting
    alone = run(paths[1])
    assert "a part of the run's state: 2 of its 4 lanes" in alone
    assert [line[0] for line in rows(alone)] == ["1", "3"]


def test_the_state_in_a_checkpoint_is_found_unless_there_are_several(
    corpus: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, "state", make(sources.MDS(corpus, column="tokens")), 6)
    plain, state = run(path), json.loads(path.read_text())
    path.write_text(json.dumps({"data": state, "step": 6, "optimiser": {"lr": 0.1}}))
    assert run(path) == plain
    for held in ({"data": state, "other": state}, {"step": 6}):
        path.write_text(json.dumps(held))
        with pytest.raises(StateError):
            run(path)


def test_the_same_comes_as_json(corpus: str, tmp_path: Path) -> None:
    source = sources.MDS(corpus, column="tokens")
    path = saved(tmp_path, "state", make(source), 6)
    found = json.loads(run(path, "--json", "--source", corpus))
    state = json.loads(path.read_text())
    assert found["next_batch"] == 6
    assert found["stepped_over"] == []
    assert found["fingerprint"] == state["fingerprint"]
    assert [lane["batches"] for lane in found["lanes"]] == [2, 2, 1, 1]
    assert [lane["waiting"] for lane in found["lanes"]] == [
        own["documents"] for own in state["lanes"].values()
    ]
    for lane in found["lanes"]:
        for words in lane["sources"][0]["words"]:
            assert re.fullmatch(r"(document \d+|the beginning|\d+%) of shard\.\d+\.mds", words)


@pytest.mark.parametrize("missing", ["source", "packer", "batch_tokens", "window", "seed"])
@pytest.mark.parametrize("instead", [None, 3, "x", {}])
def test_a_state_that_was_forged_is_refused_in_words(
    corpus: str, tmp_path: Path, missing: str, instead: Any
) -> None:
    path = saved(tmp_path, "forged", make(sources.MDS(corpus, column="tokens")), 6)
    state = json.loads(path.read_text())
    state["fingerprint"][missing] = instead
    sign(state)
    path.write_text(json.dumps(state))
    with suppress(StateError):
        assert "Next is batch" in run(path)  # of what is only named it makes no sense and no harm


def test_states_that_do_not_belong_together_are_named(corpus: str, tmp_path: Path) -> None:
    source = sources.MDS(corpus, column="tokens")
    first = saved(tmp_path, "first", make(source, 0, 2), 6)
    late = saved(tmp_path, "late", make(source, 1, 2), 7)
    with pytest.raises(StateError, match=r"1 is .*first.json, 2 is .*late.json\): `next_batch`"):
        run(first, late)
    with pytest.raises(StateError, match=r"Lanes 0, 2 are in state number 2"):
        run(first, first)
    damaged = tmp_path / "damaged.json"
    damaged.write_text(first.read_text().replace('"next_batch": 12', '"next_batch": 14'))
    with pytest.raises(StateError, match=r"damaged.json: The state's fields"):
        run(damaged)
    damaged.write_text("{")
    with pytest.raises(StateError, match=r"damaged.json is not JSON"):
        run(damaged)
    with pytest.raises(ConfigError, match=r"absent.json cannot be read: No such file"):
        run(tmp_path / "absent.json")


def test_each_member_of_a_mixture_has_its_place(corpus: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": "x" * (n % 40 + 1)}) + "\n" for n in range(400)))
    mixture = sources.Mixture(
        {
            "web": sources.MDS(corpus, column="tokens"),
            "code": sources.JSONL(texts, reading=sources.Reading(block_documents=5)),
        },
        weights={"web": 3, "code": 1},
        quantum_documents=5,
    )
    path = saved(tmp_path, "mixed", make(mixture, tokenizer=byte_tokenizer(), lanes=2), 120)
    output = run(path, "--source", f"web={corpus}", "--source", f"code={texts}")
    assert "Source web: MDS" in output
    assert "Source code: JSONL" in output
    state = json.loads(path.read_text())
    drawn = state["lanes"]["0"]["cursor"]["sources"]["web"]["tokens"]
    assert rows(output)[0][5:7] == ["web", f"{drawn:,}"]
    assert re.search(r"byte [\d,]+ of", output)
    assert re.search(r"(document [\d,]+|\d+%) of", output)
    with pytest.raises(ConfigError, match=r"the run mixes web, code"):
        run(path, "--source", corpus)


def test_many_lanes_are_summed_up(tmp_path: Path) -> None:
    source = MemorySource([numbered_documents([20] * 3000)])
    path = saved(tmp_path, "many", make(source, lanes=64), 70)
    output = run(path)
    begun = saved(tmp_path, "begun", make(source, lanes=64), 40)
    assert rows(output) == []
    assert re.search(r"batches +1 +2 +70\b", output)
    assert re.search(r"documents waiting +\d+ +\d+ +[\d,]+", output)
    assert "Lanes that have not begun: 24 of 64." in run(begun)
    assert "have not begun" not in output


def test_what_was_stepped_over_and_skipped_is_told(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "x" * 30}) for _ in range(200)]
    lines[0] = "{"
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(lines))
    dataset = make(str(texts), tokenizer=byte_tokenizer(), lanes=1, on_error="skip")
    state = json.loads(saved(tmp_path, "a", dataset, 5).read_text())
    behind = RunState(
        state["fingerprint"], Topology(), 5, {0: state["lanes"]["0"]}, [[1, 2], [3, 5]]
    )
    path = tmp_path / "b.json"
    path.write_text(json.dumps(behind.as_dict()))
    output = run(path)
    assert "batch 1 was stepped over" in output
    assert "batches 3 to 4 were stepped over" in output
    assert rows(output)[0][4] == "1"
    assert "Skipped in lane 0: " in output


def test_shards_of_another_corpus_are_not_named(corpus: str, tmp_path: Path) -> None:
    path = saved(tmp_path, "a", make(sources.MDS(corpus, column="tokens")), 5)
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = write_mds(other, ids(2, 40), column="tokens")
    with pytest.raises(ConfigError, match=r"not the shards that the run reads"):
        run(path, "--source", elsewhere)
    memory = saved(tmp_path, "m", make(MemorySource([ids(3)])), 5)
    with pytest.raises(ConfigError, match=r"of the kind MemorySource"):
        run(memory, "--source", corpus)


@pytest.mark.parametrize("name", ["a.idx", "a.npy", "a.bin", "a.ds", "a.arrow"])
def test_it_names_the_files_of_token_formats(name: str, tmp_path: Path) -> None:
    documents = ids(2)
    path = tmp_path / name
    flat = np.concatenate([np.append(document, 250) for document in documents])
    if name == "a.idx":
        write_megatron(tmp_path / "a", [[document] for document in documents], "uint16")
        source: Any = sources.MegatronIndexed(path)
    elif name == "a.arrow":
        feather.write_feather(pa.table({"ids": documents}), path)
        source = sources.Arrow(path, tokens="ids")
    elif name == "a.ds":
        source = sources.Tokens(write_datatrove(path, documents))
    elif name == "a.npy":
        np.save(path, flat.astype(np.uint16))
        source = sources.Tokens(path, eos_id=250)
    else:
        flat.astype("<i4").tofile(path)
        source = sources.Tokens(path, dtype="int32", eos_id=250)
    state = saved(tmp_path, "state", make(source, lanes=2), 9)
    shown = "a.bin" if name == "a.idx" else name
    assert shown in run(state, "--source", path)
