"""Write docs/benchmarks/records.md, all figures, from the JSON beside it.

    python -m benchmarks.records
    python -m benchmarks.records NAME [ARGUMENT ...]  # runs benchmarks.NAME first, keeps its tables

`RECORDS` tells of each measurement how it was made and how to read it; tables are in records.json,
and in a file of their own where a command has more than tables.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report

DOCS = Path(__file__).parent.parent / "docs"
RECALL = Path(__file__).parent / "papers" / "recall" / "results.jsonl"
HEAD = """# Records of measurements

`python -m benchmarks.records` writes this page from the JSON beside it; with a name it runs
that command first. [Benchmarks](../benchmarks.md) draws conclusions from the figures.
"""


class Record(NamedTuple):
    """A measurement.

    Attributes:
        title: of its section.
        command: after ``python -m ``; its first word, and the second of `benchmarks.remote`, is
            the name of its tables.
        about: how it was measured, and how to read it.
    """

    title: str
    command: str
    about: str

    @property
    def name(self) -> str:
        """Of the tables."""
        words = self.command.removeprefix("benchmarks.").split(" ")
        return " ".join(words[: 1 + (words[0] == "remote")])


RECORDS = (
    Record(
        "The suite",
        "benchmarks --docs",
        "The jobs of [the suite](../benchmarks.md#the-suite).",
    ),
    Record(
        "The proof on a GPU",
        "benchmarks.gpu --proof --docs",
        "A Llama-like model learns Python sources, cut into documents of three profiles of "
        "lengths; all ways to make rows give steps of one shape. Medians of two rounds of "
        "1.8 s, within 4.1 % of each other but for padded long documents (14 %); losses are "
        "of 7.4 s, some 130 steps.",
    ),
    Record(
        "A GPT-2 on a GPU",
        "benchmarks.gpu --docs",
        "bfloat16 autocast, AdamW, only FlexAttention compiled; documents of lognormal(6.0, "
        "1.1) tokens, medians of three rounds of 30 steps. On an H100, the first table's "
        "rates were 107, 86, 181, 313, 297 and 302, waits 6.6 and 1.6 %, and trees 2.7 "
        "times as fast.",
    ),
    Record(
        "Deals",
        "benchmarks.dealing",
        "The share of empty batches in corpora with unequal shards, cut once at the start "
        "or [dealt](../dealing.md), in 48 lanes on 8 ranks and 64 on 64, some 200 batches "
        'of 8 rows each. "Above" is the steps beyond those needed if any rank could take '
        "any batch. `--small`, 500 to 50,000 conversations on 1 to 64 ranks: the steps of a "
        "plan over all documents at once in six of nine cases, one more in the others.",
    ),
    Record(
        "Load balancing",
        "benchmarks.balance",
        "The cost of a step's slowest rank over the mean of all, without and with "
        '[`Balance("attention")`](../balance.md), on lengths alone: 64 lanes, one row per '
        'batch, 1,500 steps. 4096 and 1024 are widths of the model; "moved" is a document\'s '
        'mean distance from its place of arrival; "python" are 8,991 files of 3,808 tokens '
        "on average. Utilisation falls by at most 0.01 points.",
    ),
    Record(
        "Equal loss tokens",
        "benchmarks.loss_rows",
        "The standard deviation of loss tokens between steps, and of batches around the "
        "mean of their step, in percent of the mean batch, without and with "
        '[`Balance("loss")`](../balance.md#equal-loss-tokens); rows of 8,192 tokens, on '
        'lengths alone. Of "questions that fill rows", one in eleven is longer than a row.',
    ),
    Record(
        "Long chats",
        "benchmarks.long_chats",
        "3,000 made chats of one to five questions and answers (medians 40 and 170 tokens): "
        'the share of their loss tokens that no row holds, in %, by overflow. "split" loses '
        "none, but later pieces lack the text before them.",
    ),
    Record(
        "Rows of one key",
        "benchmarks.separate_rows",
        "60,000 documents (lognormal, median 400 tokens) in rows of 2,048 with "
        "[`Separate`](../packers.md) by keys with shares as 1 / rank: the share of slots "
        "that hold tokens, in %, beside a plan of all documents of a key at once. The "
        "second table has `batches=True`, batches of 8 rows, and missing rows as padding.",
    ),
    Record(
        "Context-parallel degrees",
        "benchmarks.cp_degrees",
        "64 simulated GPUs that hold 8,192 tokens each, for a layer of width 4096 and "
        'lognormal lengths (sigma 1.6), beside an oracle that knows all of them. "Keys" are '
        "slots with keys and values that a GPU gets from others for each of its own (the "
        "oracle: 3.9 and 9.9); times assume 50 GB/s, 400 TFLOP/s and no overlap. These are "
        "counts of operations and bytes, without memory, pipelines or slower kernels for "
        "short parts.",
    ),
    Record(
        "Pipelines",
        "benchmarks.pipelines",
        "The share of the stages' time spent waiting, by [order of "
        "micro-batches](../balance.md#micro-batches-in-pipelines), simulated on lengths "
        "alone (lognormal, median 3,000, sigma 1.3, 8 ranks, width 4096). Backward takes "
        "twice as long as forward, and sending no time.",
    ),
    Record(
        "Alignment",
        "benchmarks.alignment",
        "The share of slots that hold a token, by the multiple of slots that every document "
        "takes ([why](../consumers.md#context-parallelism-elsewhere)): rows of 4,096, "
        "100,000 documents of 699 tokens on average.",
    ),
    Record(
        "Rollouts",
        "benchmarks.rollouts",
        'Rollouts [divided among ranks](../rollouts.md); "time" sums the cost of the '
        'costliest rank over the micro-batches (1: no padding, no waiting), and a "fullest '
        "row\" above 1 exceeds the requested size. Other libraries' methods are "
        "reimplemented from their sources (verl 2026-01, prime-rl 2026-08, TRL 2026-07). "
        "With a prompt's rollouts on one rank, times are 1.002, 1.004 and 1.170 for "
        "streampack, 1.080, 1.027 and 1.431 for verl.",
    ),
    Record(
        "Rollouts in a queue",
        "benchmarks.rollout_lengths",
        "A simulated queue with 128 groups in flight and steps of 64 groups, answers of "
        "lognormal lengths, 1,000 tokens in the median: the sampled prompts that are "
        "trained, if groups are taken by windowed FIFO, and if the first finished ones are "
        "taken and those older than two steps discarded.",
    ),
    Record(
        "Steps of groups",
        "benchmarks.rollout_steps",
        "Steps of 64 groups of 16 answers as [prefix trees](../trees.md), planned by `pack` and by "
        "the asynchronous GRPO trainer of TRL 1.16 (`TokenBudgetBatcher`), where the last "
        'micro-batch waits for the next step: its lines are of those before, in which "placed" '
        'counts the answers. "Slowest" is the costliest rank over the mean, "planned in" '
        "processor time.",
    ),
    Record(
        "Prefix trees",
        "benchmarks.trees",
        "One core, nanoseconds per token of the sequences, which [prefix "
        "trees](../trees.md) compute as slots.",
    ),
    Record(
        "Tokenizers",
        "benchmarks.tokenizers --texts 20000 --docs",
        'The [engine](../sources.md#tokenizer-engine) that "auto" takes, and the texts that '
        "get other ids from it than from `tokenizers` and from `tiktoken`: 20,000 random "
        "ones of many scripts with special tokens, and 17,376 with every character of "
        "Unicode. Rates are of 8 MB of source code, by processor time, from `tokenizers` to "
        '"auto"; rates of two cores are the sum of two processes. cl100k_base was measured '
        "on a busy machine.",
    ),
    Record(
        "Converting a corpus",
        "benchmarks.conversion --megatron FOLDER --docs",
        "[`streampack convert`](../converting.md) on JSON lines of source code with GPT-2's "
        "vocabulary, beside datatrove 0.10.1 and Megatron-LM, all with the same number of "
        "ids; the start is a run on a sixtieth of the text, each the fastest of two. Megatron-LM's "
        "preprocess_data_fast uses gigatoken too, and keeps all ids in memory.",
    ),
    Record(
        "Images",
        "benchmarks.images --passes 9",
        "Images by the processor of Qwen2-VL, one thread, the shortest of nine passes. "
        '"Plan" reads a size from the head of an image\'s bytes; "decode" is left for the '
        'batch. "Held" is an image\'s memory in a window, "pixels" in a buffer of decoded '
        "samples.",
    ),
    Record(
        "Rows of tokens and patches",
        "benchmarks.image_rows",
        "60,000 documents of made sizes in rows of 8,192 tokens and proportionate patches: "
        "the used share of both, in %, with [`Capacity`](../media.md) and by other rules in "
        "order of arrival. The second table has the patches of a step's greatest batch over "
        'the mean one, without and with `Balance("patches")`.',
    ),
    Record(
        "First batches from a store",
        "benchmarks.remote first --docs",
        "Corpora of ids in eight files in SeaweedFS, in twelve lanes: the first batch of 2,048 "
        "tokens with the listing, and the data and requests by then. Round trips are the "
        "requests that followed one another until the last one that a reader waited for, "
        "without a limit of rate.",
    ),
    Record(
        "The line of a store",
        "benchmarks.remote peers --docs",
        'Eight files read by one process, ours in twelve lanes. "First" is the first sample, '
        'ours the first packed batch, with the listing and without imports. "Line" is the share '
        'of the time from then on in which the line was full; ours leaves out "idle", in which '
        'it carried nothing and no reader waited. "Gaps" are the longest times in which it '
        'carried nothing and a reader waited, "longest" is a reader\'s longest wait. litdata '
        "downloads files before it reads them. Peers give each of four hosts two whole files; our "
        "lanes are parts of all files, so that any number of hosts gives the same batches. Hosts "
        "of mosaicml-streaming on one machine share memory by names, and fail. Peers are "
        "datasets 4.8.5, litdata 0.2.76, webdataset 1.0.2 by `pipe:curl` and "
        "mosaicml-streaming 0.13.",
    ),
    Record(
        "Bytes of an epoch on hosts",
        "benchmarks.remote hosts --docs",
        "Corpora in one file and in eight, read in full by one host and by four with a cache each: "
        "bytes over the size of the files. One small file that all hosts share is the worst case "
        'for a format that is read from its beginning. "Counted" are the blocks that the parts of '
        "the lanes touch, as in the next table.",
    ),
    Record(
        "Bytes of an epoch",
        "benchmarks.remote epoch --docs",
        "The parts that 64 lanes are [dealt](../dealing.md), and the blocks that they touch "
        "in 20 synthetic files, on hosts with a cache each: bytes over the size of the files. "
        '"Unequal" shards differ in length and bytes per token.',
    ),
    Record(
        "Epochs with a small cache",
        "benchmarks.remote second-epoch --docs",
        "Three epochs of a run over eight files, with a cache of half and of four fifths of their "
        "bytes: bytes that the store sent in each, over the size of the files.",
    ),
    Record(
        "Requests and the cache",
        "benchmarks.remote processor --docs",
        "Milliseconds of processor time, the least of eight rounds in which streampack and s3fs "
        "take turns. Blocks of 256 KiB in a file each took 2.13 to write and 0.53 to read.",
    ),
    Record(
        "Many remote sources",
        "benchmarks.remote mixture --docs",
        "200 million ids (400 MB) in SeaweedFS as 1 to 100 sources, mixed by one process "
        'with twelve lanes. "CPU" is per token after the first batch; "mapped" are blocks '
        "of the cache, which the system drops when it needs memory. The growth is the fixed "
        "cost of a dealt part; with a small cache, lanes fetch a block more than once.",
    ),
    Record(
        "Starts with many files",
        "benchmarks.remote starts --docs",
        "Small files in SeaweedFS: the listing with the looks at a sample of the files (MDS: its "
        "index), then the first batch.",
    ),
    Record(
        "Images by URL",
        "benchmarks.remote images --docs",
        "Thumbnails of 2.3 KB in SeaweedFS, 30 ms away, named by JSON lines, in twelve "
        'lanes of one process on a busy machine. "Grown" is memory beyond that after a '
        "tenth of the images. One by one, a request takes 30 ms and more.",
    ),
    Record(
        "Films by URL",
        "benchmarks.films",
        "An mp4 film of 2 GB with sound and its head at its end, made of repeated packets, in "
        'SeaweedFS, on a busy machine. "Size" reads the head for the plan; "frames" decodes 16 '
        "frames spread over the film, with a keyframe every two seconds, in blocks of 256 KiB; "
        'PyAV, given the URL by fsspec, seeks to the same frames. "Exact" are the bytes of the '
        'head and of the packets that are decoded, "held" those of the film in a window.',
    ),
    Record(
        "Waits",
        "benchmarks.waits --docs",
        "One stage is delayed by 40 ms per batch, or the step, of 4 ms, by 96 ms: the "
        "trials in which [`Waits`](../monitoring.md) named it, of eight ranks (gloo, a "
        "worker each) with the rank. On a busy machine without a worker it named the store "
        "in five of 20 trials of a slow step.",
    ),
    Record(
        "Scale",
        "benchmarks.scale",
        "One million shards, 4,096 ranks of 8 workers and 65,536 lanes on two cores. Not "
        "measured: real clusters, LIST latency of a real store, the manifest sent to 4,096 "
        "ranks, an index of a million MDS shards.",
    ),
    Record(
        "Documents taken out",
        "benchmarks.exclude",
        "[`exclude=`](../ledger.md): 10,000 documents of 750 ids on average, uint16 in "
        "Parquet with a column of 45 characters, one lane without workers; the processor "
        "time that it adds to a document, and its share of the time without: medians of the "
        "differences in 40 rounds on two cores with a load of 9, where both come out "
        "higher than on an idle machine.",
    ),
    Record(
        "Caps",
        "benchmarks.caps",
        "[Caps](../ledger.md#at-most-so-many-tokens-of-a-value) are divided equally among lanes. "
        '60 shards of 500 documents, 244 tokens long on average, of which three tenths are "web", '
        "in twelve lanes: the tokens of web that are delivered, of the ones that the cap allows.",
    ),
    Record(
        "Replay of a run on lengths",
        "benchmarks.ledger",
        "[`streampack ledger`](../ledger.md) looks for a document that no batch of a run has: "
        "60,000 documents of 750 ids on average, uint16 in Parquet or texts that a tokenizer of "
        "bytes reads, ten epochs, rows of 4,096, batches of 8 rows, twelve lanes in one "
        "process. Rates are tokens per second of processor time, one after the other on two "
        "cores with a load of about 7, where they are lower than on an idle machine; the "
        "minutes follow from the rate.",
    ),
    Record(
        "States and resuming",
        "benchmarks.weights",
        "`set_weights` after each of 1,000 steps of a mixture of three sources: median, "
        "99th percentile and longest time of a call, the bytes of the changes in a state, "
        "and a call that reopens the lanes, with its next batch. `python -m "
        "benchmarks.state`: a lane takes 2 KB with 10,000 documents in its window, 6 to 10 "
        "KB with very short or split ones; `state_dict` takes 0.5 ms per lane, 0.1 ms in "
        "all with workers. `python -m benchmarks.resume`: the first batch after a resume "
        "comes after 10 to 20 ms with MDS, 25 to 54 with tar, 77 to 180 with Parquet.",
    ),
    Record(
        "Layouts of files",
        "benchmarks.layouts",
        'Each layout in one lane and in twelve ("1 / 12"), in processes of their own, with '
        'empty caches, files that are not in memory and rows of 1,024 tokens. "ns" is '
        'processor time per token, "x tokenizing" the one of twelve lanes over 98 ns, the time '
        "of tokenizing; MiB is memory beyond the beginning of the process; read and written "
        "are MB.",
    ),
    Record(
        "Buckets of a paper",
        "benchmarks.papers.buckets",
        "A million lengths of lognormal(5.864, 1.195), fitted to the 719 tokens and 28.39 % "
        "of cut documents of [the paper](../papers.md#buckets), arXiv 2407.07495v1. It "
        "gives no shortest document.",
    ),
    Record(
        "Buckets from a pool",
        "benchmarks.papers.bucket_pool",
        "The published version (arXiv 2407.07495v2) composes rows from a pool of S "
        "documents, which is then filled up: its text was not at hand, its table and inputs "
        "were. A million documents, buckets from 1,024 to 16,384, threshold 0.05. The table "
        "needs a pool of nearly the whole corpus: a small one fills with short documents.",
    ),
    Record(
        "Online beside a whole corpus",
        "benchmarks.papers.online",
        "Buckets from 2,048 to 16,384 in batches of 65,536 tokens; `BestFitCrop` in rows of "
        "2,048; the default window.",
    ),
    Record(
        "A dense start",
        "benchmarks.papers.dense_start",
        "300,000 documents of lognormal(5.864, 1.195), one lane, batches of 65,536 tokens, "
        "by a `Curriculum`: the first 30 % of the slots and the rest. 0.4 % of the "
        "documents are longer than all rows.",
    ),
    Record(
        "Related documents in a row",
        "benchmarks.papers.in_context",
        "16,384 Python files in random order, each cut to its first 1,024 tokens, in rows "
        "of 8,192: mean cosine in the embedding that the order uses, and dropped "
        "near-duplicates. Of 200 planted copies, all were found with up to 2 % of their "
        "tokens replaced, 156 with 5 %, none with 10 %.",
    ),
    Record(
        "A whole corpus in order",
        "benchmarks.papers.corpus_order",
        "[`streampack order`](../order.md) on two cores shared with other work, with two "
        "Ray workers. Of the planted copies with a cosine above 0.95 to their originals, "
        "all 8,429 of 200,000 documents were found, and 238,157 of 238,555 of five million; "
        "no other document was dropped.",
    ),
    Record(
        "Similarity in rows",
        "benchmarks.papers.row_mates",
        "8,192 Python files of 40,168 on a machine, 853 tokens on average, in one ordering "
        "window and rows of 8,192: pairs of one package (which no order looks at), mean "
        "cosines, shares above a cosine, near-duplicates dropped. Hashed BM25 finds 84.6 % "
        "of the 10 nearest in the same package, the textbook's 86.8 %.",
    ),
    Record(
        "Steps of Concat and Pad",
        "benchmarks.papers.refining",
        "Steps over two epochs: 779,425 documents of 146.8 tokens on average, at least 58, "
        "since the paper gives only these.",
    ),
    Record(
        "Loaders of packages, checked",
        "benchmarks.checked_loaders",
        "[`streampack check`](../check.md) over 400 marked documents of 4 to 128 tokens in "
        "rows of 256, on CPUs: transformers 4.57.6, datasets 4.8.4, TRL 1.16.0, torchtune "
        "0.6.1, litgpt 0.5.13, LitData 0.2.76, torchtitan 0.3.0, megatron-core 0.16.1, "
        "grain 0.2.18, nanochat 92d63d4.",
    ),
    Record(
        "Loaders of scripts, checked",
        "benchmarks.checked_scripts FOLDER",
        "The same with loaders that stand in scripts, over checkouts in FOLDER, with other "
        "tokenizers and devices: modded-nanogpt f411b3d, llm.c f1e2ace, TinyLlama bf12224, "
        "lingua 437d680, picotron 59714b1, nanotron 2411b02, OLMo-core fa6c501, "
        "open-instruct e6c3044, axolotl 067b021, LLaMA-Factory ff6d4d1, llm-foundry "
        "8c8dd48. OLMo-core drops the last, unfinished batch of an epoch, and nanotron's "
        "collator was given rows that were cut here. modded-nanogpt's generator ends with "
        "an error when its shards are used up, which its script does not reach.",
    ),
    Record(
        "Recall",
        "benchmarks.papers.recall",
        "A tiny model (2 blocks of width 64, 600 steps, seeds 0 to 4) learns made documents "
        "of 64 to 512 tokens, which state facts and ask for each once, later, in rows of "
        "256; the protocol was written before the runs. The share of right answers on "
        "held-out documents, alone or behind another one: differences in points, with "
        "Student's t over pairs of a seed, 95 % intervals and Holm's correction; `--report` "
        "prints all tables.",
    ),
)

#: Files with more than tables, by title, and the function that writes them, as module:function.
OWN = {
    "The suite": ("results.json", "benchmarks.report:markdown"),
    "The proof on a GPU": ("proof.json", "benchmarks.proof.command:markdown"),
    "A GPT-2 on a GPU": ("gpu.json", "benchmarks.gpu:markdown"),
    "Tokenizers": ("tokenizers.json", "benchmarks.tokenizers:table"),
    "Converting a corpus": ("conversion.json", "benchmarks.conversion:table"),
    "Waits": ("waits.json", "benchmarks.waits:table"),
    "Recall": (RECALL, "benchmarks.papers.recall.report:table"),
}


def page(folder: Path = DOCS / "benchmarks") -> str:
    """Return the page of the figures in the folder."""
    kept = json.loads((folder / "records.json").read_text())
    parts = [HEAD]
    for record in RECORDS:
        command = f"`python -m {record.command}`. " if record.command else ""
        if record.title in OWN:
            file, function = OWN[record.title]
            module, _, name = function.partition(":")
            write = getattr(importlib.import_module(module), name)
            lines = (folder / file).read_text()
            if Path(file).suffix == ".jsonl":
                lines = f"[{','.join(lines.splitlines())}]"
            text = write(json.loads(lines)).strip()
        else:
            text = "\n\n".join(map(_table, kept[record.name]))
        parts.append(f"## {record.title}\n\n{_filled(command + record.about)}\n\n{text}\n")
    return "\n".join(parts)


def write_page(docs: Path = DOCS) -> None:
    """Write it."""
    (docs / "benchmarks" / "records.md").write_text(page(docs / "benchmarks"))


def rerun(name: str, arguments: Sequence[str], folder: Path = DOCS / "benchmarks") -> None:
    """Run a command and keep the tables that it prints.

    Raises:
        SystemExit: no record has this name, or the command prints no table.
    """
    if name not in {each.name for each in RECORDS if each.command and each.title not in OWN}:
        raise SystemExit(f"benchmarks.{name} has no record of tables here. Run it with --docs.")
    module, before = importlib.import_module(f"benchmarks.{name}"), sys.argv
    report.PRINTED.clear()
    sys.argv = [f"benchmarks.{name}", *arguments]
    try:
        module.main()
    finally:
        sys.argv = before
    if not report.PRINTED:
        raise SystemExit(f"benchmarks.{name} printed no table. Its record stays as it was.")
    keep(name, folder)


def keep(name: str, folder: Path = DOCS / "benchmarks") -> None:
    """Keep the tables that were printed last, under a name."""
    file = folder / "records.json"
    kept: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())
    kept[name] = [dict(table) for table in report.PRINTED]
    file.write_text(as_json(kept))


def as_json(kept: dict[str, list[dict[str, Any]]]) -> str:
    """Return the tables with a line for each row, so that a diff shows the rows that changed."""
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", _on_one_line, text) + "\n"


def _on_one_line(found: re.Match[str]) -> str:
    return json.dumps(json.loads(found[0]), ensure_ascii=False)


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _table(table: dict[str, Any]) -> str:
    text = report.markdown_table(table["head"], table["rows"])
    return f"{table['title']}:\n\n{text}" if table["title"] else text


def main() -> None:
    """Run a command if one is named, and write the page."""
    if len(sys.argv) > 1:
        rerun(sys.argv[1], sys.argv[2:])
    write_page()
    print(DOCS / "benchmarks" / "records.md")


if __name__ == "__main__":
    main()
