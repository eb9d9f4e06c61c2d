"""equal_bins and Cost: nearly equal costs within limited sizes; costs as the models have them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack.packers.microbatches import bins_needed, equal_bins
from streampack.packing import Cost
from tests.support.drawn import drawn

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@given(SIZES, st.integers(40, 80), st.integers(0, 5))
@drawn(300)
def test_no_bin_is_above_its_capacity_and_as_many_as_best_fit_takes_are_enough(
    sizes: list[int], capacity: int, more: int
) -> None:
    lengths = np.array(sizes)
    bins = bins_needed(lengths, capacity) + more
    place = equal_bins(lengths, lengths.astype(float) ** 2, bins, capacity)
    assert place is not None
    assert place.min() >= 0
    used = np.bincount(place, weights=lengths, minlength=bins)
    assert len(used) == bins
    assert used.max() <= capacity


@given(st.lists(st.integers(1, 100), min_size=1, max_size=9), st.integers(1, 3))
@drawn(100)
def test_bins_cost_at_most_a_third_more_than_the_best_that_there_is(
    costs: list[int], bins: int
) -> None:
    sizes = np.ones(len(costs), dtype=np.int64)
    place = equal_bins(sizes, np.array(costs, dtype=float), bins, len(costs))
    assert place is not None
    best = min(
        max(sum(c for c, b in zip(costs, where, strict=True) if b == one) for one in range(bins))
        for where in itertools.product(range(bins), repeat=len(costs))
    )
    # Graham's bound for the first step, of which the second makes nothing worse
    assert np.bincount(place, weights=costs).max() <= best * (4 / 3 - 1 / (3 * bins)) + 1e-9


@given(st.integers(1, 300), st.integers(1, 50))
def test_a_cost_counts_each_pair_that_attends(length: int, window: int) -> None:
    pairs = sum(token + 1 for token in range(length))
    near = sum(min(token + 1, window) for token in range(length))
    cost = Cost(token=7, pair=2, windows={window: 3})
    assert cost([length]).tolist() == [7 * length + 2 * pairs + 3 * near]


SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2}
MODELS = {
    "LlamaConfig": {},
    "Qwen3Config": {"head_dim": 16},
    "Gemma2Config": {"head_dim": 16},
    "GPT2Config": {"num_key_value_heads": None, "n_inner": 48},
    "NemotronConfig": {"head_dim": 8},
    "MixtralConfig": EXPERTS,
    "Qwen2MoeConfig": {
        **EXPERTS, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
        "decoder_sparse_step": 2,
    },
    "Qwen3MoeConfig": {**EXPERTS, "moe_intermediate_size": 24, "mlp_only_layers": [0]},
    "GptOssConfig": {**EXPERTS, "head_dim": 16},
    "Glm4MoeConfig": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "first_k_dense_replace": 1, "head_dim": 16, "n_shared_experts": 1,
    },
    "DeepseekV3Config": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "first_k_dense_replace": 1, "n_shared_experts": 2, "num_key_value_heads": 4,
        "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
        "v_head_dim": 6, "n_group": 1, "topk_group": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_token_costs_two_for_each_weight_that_it_meets(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if not hasattr(transformers, name):
        pytest.skip("this transformers has no such model")
    given = {key: value for key, value in {**SMALL, **MODELS[name]}.items() if value is not None}
    config = getattr(transformers, name)(**given)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    weights = config.hidden_size * config.vocab_size  # the output layer, tied or not
    for key, parameter in model.named_parameters():
        embeds = any(part in key for part in ("embed_tokens", "embed_in", "wte", "wpe"))
        if parameter.ndim < 2 or embeds or "lm_head" in key or "embed_out" in key:
            continue
        if "bias" in key:
            continue
        share = 2 / 8 if ".experts." in key else 1
        weights += share * parameter.numel()
    assert Cost.from_config(config).token == 2 * weights


def test_layers_with_a_window_are_counted_apart() -> None:
    transformers = pytest.importorskip("transformers", minversion="4.50")
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    config = transformers.Gemma3TextConfig(
        **SMALL, head_dim=16, sliding_window=128, layer_types=kinds
    )
    cost = Cost.from_config(config)
    assert cost.pair == 4 * 4 * 16
    assert cost.windows == {128: 3 * 4 * 4 * 16}
