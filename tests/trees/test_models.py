"""Models of transformers on trees: as on sequences one by one, or refused with the reason."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask

from streampack import check_isolation, pack
from streampack.errors import ConfigError
from tests.support.tiny_families import VOCABULARY, tiny_model

FAMILIES = (
    "gpt2", "gpt_neox", "phi", "starcoder2", "opt", "llama", "qwen2", "qwen3", "mistral",
    "olmo2", "gemma2", "mixtral", "qwen2_moe", "qwen3_moe", "gptj",
)  # fmt: skip


def batch_of(seed: int, seq_len: int = 48) -> tuple[Any, list[list[int]]]:
    """A row of a tree of several levels, and one of a pair; the sequences of both."""
    rng = np.random.default_rng(seed)

    def some(least: int, most: int) -> list[int]:
        return rng.integers(2, VOCABULARY, rng.integers(least, most)).tolist()

    prompt, answer = some(1, 9), some(1, 5)
    group = [prompt + some(1, 5), prompt + answer + some(0, 4), prompt + answer + some(1, 4)]
    group += [prompt, group[0]]
    ids = [*group, *(some(1, 2) + some(1, 6) for _ in range(2))]
    groups = [*[0] * len(group), 1, 1]
    plan = pack(
        [len(one) for one in ids], ids=ids, groups=groups, layout="tree", seq_len=seq_len,
        microbatches=1,
    )  # fmt: skip
    (batch,) = plan.batches(ids)
    return batch, [ids[i] for i in batch.provenance["index"].tolist()]


def in_double(model: Any) -> Any:
    """The model in double precision, also in its norms, which compute in single precision."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            gemma = type(module).__name__.startswith("Gemma")

            def forward(self: Any, x: Any, gemma: bool = gemma) -> Any:
                eps = getattr(self, "eps", None) or self.variance_epsilon
                weight = self.weight + 1 if gemma else self.weight
                return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight

            module.forward = MethodType(forward, module)
    return model.double()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_and_gradients_match_sequences_one_by_one(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = torch.nn.functional.softmax
    # Routers of experts ask for single precision.
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim, **_: softmax(x, dim))
    single = family == "gptj"  # its scores of attention are always in single precision
    model = in_double(tiny_model(family, "eager" if single else "sdpa", seconds=60))
    exact, close = (1e-5, 1e-5) if single else (1e-12, 1e-11)
    for seed in range(3):
        batch, sequences = batch_of(seed)
        model.zero_grad()
        logits = model(**batch.hf(model=model)).logits
        loss = batch.loss(logits)
        loss.backward()
        shared = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        log_probs = batch.log_probs(logits)
        for number, ids in enumerate(sequences):
            given = torch.tensor([ids])
            alone = model(input_ids=given, use_cache=False).logits[0, :-1].log_softmax(dim=-1)
            expected = alone.gather(1, given[0, 1:, None])[:, 0]
            found = log_probs[batch.sequence_ids == number][1:]
            torch.testing.assert_close(found, expected, rtol=0, atol=close)
            total = total - expected.sum()
        total = total / batch.num_loss_tokens
        total.backward()
        torch.testing.assert_close(loss.double(), total, rtol=exact, atol=exact)
        scale = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(
                    shared[name], parameter.grad, rtol=0, atol=exact * max(scale, 1), msg=name
                )
    assert check_isolation(model, batch)


@pytest.mark.parametrize("stance", ["force_eager", pytest.param("default", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family",
    [
        "gemma2",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("llama", "qwen3", "starcoder2", "gpt_neox", "mistral", "opt")
        ),
    ],
)
def test_flex_attention_takes_the_block_mask(family: str, stance: str) -> None:
    flex, dense = (tiny_model(family, way, seconds=60) for way in ("flex_attention", "sdpa"))
    dense.load_state_dict(flex.state_dict())
    batch, _ = batch_of(1)
    torch.compiler.reset()
    # On a CPU torch has no gradients of FlexAttention, and compiles it for one shape alone.
    with (
        torch.no_grad(),
        torch.compiler.set_stance(stance),
        torch._dynamo.config.patch(automatic_dynamic_shapes=False),
    ):
        arguments = batch.hf(model=flex)
        found = flex(**arguments).logits.view(batch.seq_len, -1)
        expected = dense(**batch.hf(model=dense)).logits.view(batch.seq_len, -1)
    masks = arguments["attention_mask"]
    for mask in masks.values() if isinstance(masks, dict) else [masks]:
        assert isinstance(mask, BlockMask)
        # Compiled code visits the blocks of the mask only, which lie about all of its pairs.
        pairs = create_mask(mask.mask_mod, 1, 1, *mask.seq_lengths, device="cpu")
        size, _ = mask.BLOCK_SIZE
        visited = mask.to_dense().bool().repeat_interleave(size, 2).repeat_interleave(size, 3)
        assert not (pairs & ~visited[..., : pairs.shape[2], : pairs.shape[3]]).any()
    real = batch.document_ids.view(-1) >= 0
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-5)
    assert batch.loss(found) > 0


@pytest.mark.parametrize("family", ["mamba", "recurrent_gemma", "lfm2"])
def test_layers_that_mix_along_the_row_are_refused(family: str) -> None:
    model = tiny_model(family, "eager", seconds=60)
    batch, _ = batch_of(0)
    with pytest.raises(ConfigError) as error:
        batch.hf(model=model)
    assert error.value.setting == "model"


def test_a_model_that_sees_other_branches_leaks() -> None:
    model = tiny_model("llama", "sdpa")
    batch, _ = batch_of(0)
    found = check_isolation(
        model, batch, call=lambda b: model(input_ids=b.input_ids, position_ids=b.position_ids)
    )
    assert not found
    assert {leak.changed for leak in found.leaks} & {0, 1}
