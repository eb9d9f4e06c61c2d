"""Every example runs on a CPU and prints correct results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.fill_in_the_middle import FillInTheMiddle
from examples.online_mixing import REFERENCE, DoReMi, train
from examples.per_source_loss import per_source_loss
from streampack import PackedDataset, Topology, sources
from streampack.documents import Documents
from streampack.hooks.stages import document_seeds
from tests.support.forked import Host

FOLDER = Path(__file__).parent.parent / "examples"
PREFIX, SUFFIX, MIDDLE, EOS = range(1000, 1004)
PRINTS = {
    "attention_kernels": r"flex: differs from each segment by itself by \d\.\de-(0[2-9]|1\d) at",
    "cp_degrees": r"[1-9]\d* of degree 4\ngradients .* by (0\.0e\+00|\d\.\de-1[4-9]) at",
    "decomposition": r"(\d+) of \1 tokens in rows of 32, 64, 128, 256",
    "distillation": r"by \d\.\de-1[4-9] at most\ndivergence .*: [23]\.\d\d, after .* 0\.[2-6]\d",
    "dpo_tree": r"1\.7 times fewer tokens, losses differ by (0\.0e\+00|\d\.\de-1[2-9]) at most",
    "elastic_gloo": r"3 ranks killed.*\nthe same \d+ batches: True\n.* (0\.0e\+00|\d\.\de-1\d)",
    "elastic_torchft": r"47 steps of 3 replicas.*\n269 batches; .* one rank: True",
    "elastic_torchrun": r"60  .* on 8 ranks\nlargest difference: (0\.0e\+00|\d\.\de-1\d)",
    "fill_in_the_middle": r"1\d\d of 120 documents were long .*\n[3-8]\d of them were rearranged",
    "grpo_tree": r"reward (0\.[5-9]\d|1\.00)\n[3-9]\.\d times .*by (0\.0e\+00|\d\.\de-1[2-9]) at",
    "hf_trainer": r"weights differ by 0\.0e\+00; [1-9]\d* tokens since resuming",
    "lightning_datamodule": r"weights differ by 0\.0e\+00; the same tokens: True",
    "megatron_batches": r"([1-9]\d*) tokens of \1 on 2 context-parallel ranks",
    "online_mixing": r"weights: cycle 0\.[01]\d, noise 0\.[123]\d, table 0\.[5-8]\d",
    "own_parts": r"5 documents in 4 rows\n(.*\n)*1\d\d batches, 20 .* the same: True",
    "own_stage": r"190 documents are clean\n.* same batches: True\nanother .*: stages differs",
    "per_source_loss": r"step 40: easy [01]\.\d\d, hard [3-9]\.\d\d",
    "ray_train": r"\[1, 2\], one killed: True; .*\n([\d,]+) of \1 tokens, .*: \d\.\de[-+](1\d|00)",
    "rollout_adapters": r"10 tokens, 4 in the loss",
    "rollouts_on_ray": r"sampler, trainer; 1 tickets came back .*\neach answer .* once: True",
    "rollouts_resumed": r"step 40: reward (0\.[4-9]\d|1\.00), .*\n640 .* each once: True; state of",
    "similarity_embedders": r"hashed n-grams: [1-9]\d* files ordered, \d+ near-duplicates left out",
    "pipeline_stages": r"by (0\.0e\+00|\d\.\de-1[4-9]) at most\n.* they are off by [1-9]\d*%",
    "vlm_finetune": r"packed: \d+ steps, 9\d% (.*\n)+resumed .* with the same pixels: True",
    "torchtitan_loader": r"labels \(256,\); resumed: True",
}


#: Examples that take half a minute each; other tests cover their subject.
LONG = (
    "elastic_gloo",
    "elastic_torchft",
    "elastic_torchrun",
    "lightning_datamodule",
    "ray_train",
    "rollouts_on_ray",
)
EXAMPLES = [
    pytest.param(path.stem, marks=pytest.mark.slow if path.stem in LONG else ())
    for path in sorted(FOLDER.glob("[!_]*.py"))
]


@pytest.mark.docs
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs_and_prints_its_claim(host: Host, name: str, tmp_path: Path) -> None:
    if name == "lightning_datamodule":
        pytest.importorskip(
            "lightning.pytorch", reason="Lightning, or a torchvision it finds, fails"
        )
    if name == "elastic_torchft":
        pytest.importorskip("torchft")
    if "ray" in name.split("_"):
        pytest.importorskip("ray.train")
    (status,), output = host.run(FOLDER / f"{name}.py", folder=tmp_path)
    assert status == 0, output
    assert re.search(PRINTS[name], output), output


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [8])
def test_groups_of_ranks_have_the_gradients_of_one_process(
    host: Host, ranks: int, tmp_path: Path
) -> None:
    (status,), output = host.run(FOLDER / "cp_degrees.py", ranks, folder=tmp_path)
    assert status == 0, output
    assert re.search(PRINTS["cp_degrees"], output), output


def block(lengths: list[int], eos: bool) -> Documents:
    rng = np.random.default_rng(0)
    ends = [EOS] if eos else []
    return Documents.from_arrays(
        [np.array([*rng.integers(0, 900, n), *ends], dtype=np.uint16) for n in lengths]
    )


def restored(ids: list[int]) -> list[int]:
    """Return a document as it was before it was rearranged."""
    if PREFIX not in ids:
        return ids
    ends = ids[-1:] if ids[-1] == EOS else []
    suffix, middle = ids.index(SUFFIX), ids.index(MIDDLE)
    body = ids[: len(ids) - len(ends)]
    return body[1:suffix] + body[middle + 1 :] + body[suffix + 1 : middle] + ends


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.booleans(), st.integers(0, 9))
def test_fill_in_the_middle_loses_nothing_and_depends_on_the_document_alone(
    lengths: list[int], eos: bool, seed: int
) -> None:
    hook = FillInTheMiddle(PREFIX, SUFFIX, MIDDLE, EOS, rate=0.5)
    documents = block(lengths, eos)
    seeds = document_seeds(seed, 0, documents.origin)
    made = hook(documents, seeds)
    for i in range(len(documents)):
        assert restored(made.document(i).tolist()) == documents.document(i).tolist()
        alone = hook(documents[i : i + 1], seeds[i : i + 1])
        assert alone.document(0).tolist() == made.document(i).tolist()


def test_fill_in_the_middle_rearranges_the_share_that_was_asked_for() -> None:
    documents = block([4] * 2000, eos=True)
    hook = FillInTheMiddle(PREFIX, SUFFIX, MIDDLE, EOS, rate=0.3)
    made = hook(documents, document_seeds(1, 0, documents.origin))
    rearranged = made.lengths > documents.lengths
    assert 0.25 < rearranged.mean() < 0.35
    ids = [made.document(i).tolist() for i in np.flatnonzero(rearranged)]
    prefixes = [document.index(SUFFIX) - 1 for document in ids]
    assert set(prefixes) == set(range(5))  # cuts fall everywhere, both ends included


def test_per_source_loss_matches_each_sources_documents() -> None:
    rng = np.random.default_rng(0)
    parts = {name: [rng.integers(0, 9, n).tolist() for n in (5, 9, 14)] for name in ("a", "b")}
    mixture = sources.Mixture(parts, weights={"a": 1, "b": 1})
    dataset = PackedDataset(mixture, seq_len=64, lanes=1, topology=Topology())
    batches = list(dataset)
    total = torch.zeros(2, dtype=torch.long)
    for batch in batches:
        logits = torch.randn(*batch.input_ids.shape, 9, generator=torch.Generator().manual_seed(0))
        sums, counts = per_source_loss(logits, batch, 2)
        total += counts
        expected = torch.zeros(2)
        for t in range(1, 64):
            piece = int(batch.document_ids[0, t])
            if piece >= 0 and piece == int(batch.document_ids[0, t - 1]):
                label = batch.input_ids[0, t]
                expected[batch.source_ids[piece]] -= logits[0, t - 1].log_softmax(-1)[label]
        torch.testing.assert_close(sums, expected)
    assert total.tolist() == [5 + 9 + 14 - 3] * 2


def test_online_mixing_moves_weight_to_sources_not_yet_learnt() -> None:
    """The sources: a cycle that is learnt at once, unlearnable noise, a table that takes time."""
    loader = train()
    changes = loader.state_dict()["weights"]
    batches = [batch for batch, _ in changes][:-1]  # the last change comes with the end of the run
    assert batches == [*range(batches[0], batches[-1] + 1, 10)]
    assert batches[0] % 10 == 0
    shares = np.array([[weights[name] for name in REFERENCE] for _, weights in changes])
    np.testing.assert_allclose(shares.sum(1), 1)
    cycle, noise, table = shares.T
    assert (table > 0.5).all()
    assert max(cycle.max(), noise.max()) < 0.4


def test_online_mixing_weighs_by_the_excess_of_the_loss_alone() -> None:
    given: list[dict[str, float]] = []

    class Loader:
        set_weights = staticmethod(given.append)

    mixing = DoReMi(Loader(), {"a": 1.0, "b": 3.0, "c": 0.0}, rate=1.0, even=0.0)  # type: ignore[arg-type]
    mixing.update(torch.tensor([30.0, 20.0, 0.0]), torch.tensor([10, 10, 0]))
    # Two nats above the reference, one below it, and not seen.
    by = np.exp([2.0, 0.0, 0.0])
    np.testing.assert_allclose([*given[-1].values()], by / by.sum())


@pytest.mark.docs
def test_online_mixing_sets_the_same_weights_on_every_rank(host: Host, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text((FOLDER / "online_mixing.py").read_text())
    statuses, output = host.run_job(program, processes=2)
    assert statuses == [0, 0], output
    first, second = re.findall(r"weights: .*", output)
    assert first == second
