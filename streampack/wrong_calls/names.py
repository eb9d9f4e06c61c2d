"""Tables of attributes that other libraries have, and the calls that take their place here."""

from __future__ import annotations

from streampack.wrong_calls.words import by_name

_BATCH = "write model(**batch.hf(model=model)), which also keeps the documents of a row apart"
_RANKS = (
    "Every rank and worker gets its own batches without a sampler, and PackedLoader(dataset) "
    "iterates over them"
)
_STEPS = (
    "rows are counted as documents are packed, and loader.estimate_steps() estimates the steps of "
    "the run"
)
_RECORDS = (
    "pass map=function to PackedDataset for blocks of token ids, or sources.open(path, "
    "records=function) for records"
)

#: Attributes of datasets of torch, datasets, webdataset and MosaicML.
OF_DATASETS = by_name(
    {
        "__len__": f"{_STEPS}. {_RANKS}",
        "__next__": "write next(iter(PackedLoader(dataset))) for its first batch",
        "__getitem__ __getitems__ take head": "write next(iter(PackedLoader(dataset))) for its "
        "first batch",
        "map batch_map with_transform set_transform apply compose map_dict map_tuple": _RECORDS,
        "filter select where": "pass filter=function to PackedDataset, which gets (documents, "
        "seeds)",
        "shuffle shuffled": "pass PackedDataset(source, shuffle=True, seed=...)",
        "set_epoch epoch next_epoch": "pass PackedDataset(source, epochs=n) and write one loop; "
        "each epoch has its own order",
        "repeat with_epoch cycle": "pass PackedDataset(source, epochs=n), or epochs=None for an "
        "endless run",
        "batch batched": "pass PackedDataset(source, batch_size=...)",
        "shard split_by_node split_dataset_by_node": f"{_RANKS}",
        "skip skip_examples": "write PackedLoader(dataset).skip(batches)",
        "train_test_split random_split split": "pass other files to a second PackedDataset, or "
        "PackedDataset.evaluation(source, seq_len=...)",
        "with_format set_format with_length to_tuple decode": "leave it out: batches hold torch "
        "tensors",
        "remove_columns rename_column select_columns column_names features": "name the column in "
        'the call, as in PackedDataset(source, text="body")',
        "state_dict": "write loader.state_dict() of PackedLoader(dataset)",
        "num_rows num_samples size length total_samples num_batches": f"{_STEPS}",
        "tokenizer seq_len batch_size packer source seed epochs lanes window config": (
            "print(dataset) shows the settings of the run"
        ),
        "concatenate concatenate_datasets interleave interleave_datasets __add__": "pass "
        "sources.Mixture({name: source}, weights=...) to PackedDataset",
        "collate_fn": "pass PackedLoader(dataset, transform=function)",
        "to cuda": "pass PackedLoader(dataset, device=...)",
        "to_iterable_dataset dataloader get_dataloader loader": "write PackedLoader(dataset)",
        "save_to_disk push_to_hub to_parquet to_json": "run streampack convert, or "
        "streampack.convert(source, folder)",
        "metrics": "write loader.metrics() of PackedLoader(dataset)",
        "accumulate": "write PackedLoader(dataset).accumulate(batches)",
    }
)

#: Attributes of loaders.
OF_LOADERS = by_name(
    {
        "__len__": f"{_STEPS}. A Trainer takes the loader as loader= of "
        "streampack.trainers.TrainerMixin, and a DataLoader its dataset",
        "__next__ next next_batch get_batch": "write batches = iter(loader) once, and "
        "next(batches) for each batch",
        "__getitem__": "write next(iter(loader)) for the first batch, or for batch in loader",
        "set_epoch epoch next_epoch": "pass PackedDataset(source, epochs=n) and write one loop; "
        "each epoch has its own order",
        "reset rewind restart": "write loader.load_state_dict(state) with a state from the start, "
        "or make a new PackedLoader(dataset)",
        "save save_state get_state state": "write loader.state_dict()",
        "load load_state resume restore": "write loader.load_state_dict(state)",
        "num_batches num_steps total_steps steps_per_epoch length size": f"{_STEPS}",
        "map": "pass PackedLoader(dataset, transform=function)",
        "filter shuffle": "pass it to PackedDataset",
        "take limit islice": "write itertools.islice(loader, steps)",
        "to cuda": "pass PackedLoader(dataset, device=...)",
        "step global_step batches_seen current_step": 'write loader.state_dict()["next_batch"], '
        "or loader.metrics().batches",
        "seq_len tokenizer packer": "print(loader) shows the settings of the run",
        "unbatched batched with_epoch repeat": "pass PackedDataset(source, batch_size=..., "
        "epochs=...)",
        "estimate num_tokens": f"write loader.metrics(); {_STEPS}",
        "explain plan": "write loader.dataset.plan, or loader.dataset.explain()",
    }
)

#: Attributes of batches: dicts of transformers, tuples of nanoGPT, tensors.
OF_BATCHES = by_name(
    {
        "attention_mask attn_mask": f"{_BATCH}; batch.padding_mask is True on padding",
        "__getitem__": "write batch.input_ids, or batch.hf(model=model) for a dict of a model's "
        "arguments",
        "__len__ __next__": "write batch.rows for the number of rows, and batch.input_ids for "
        "their tokens",
        "items values get pop update data to_dict dict": f"{_BATCH}",
        "batch_size bs num_rows bsz num_samples": "write batch.rows",
        "shape size dim ndim view numel reshape long unsqueeze": "write batch.input_ids for "
        f"the tensor; for a model {_BATCH}",
        "cuda": 'write batch.to("cuda")',
        "cpu": 'write batch.to("cpu")',
        "half float double bfloat16 bf16 type astype dtype": "write batch.to(device): "
        "ids have no such dtype, and the model casts its embeddings",
        "targets target y label lm_labels": "write batch.labels, which are not shifted, or "
        "batch.next_tokens()",
        "x inputs input ids tokens token_ids input_tokens": "write batch.input_ids",
        "token_type_ids": f"{_BATCH}",
        "loss_mask loss_weights mask weights": "write batch.labels != -100, or batch.padding_mask",
        "doc_ids segment_ids sequence_ids seq_ids segments documents": "write batch.document_ids",
        "lengths seq_lens seqlens seq_lengths length sequence_lengths": "write "
        "batch.cu_seqlens.diff()",
        "positions pos position pos_ids": "write batch.position_ids",
        "cu_seq_lens cu_seqlens_q cu_seq_lens_q cu_seqlens_k cu_seq_lens_k max_length_q "
        "max_seqlen_q max_seqlen_k max_seq_len cu_seq_len": "write batch.varlen()",
        "block_mask": "write batch.flex()",
        "texts text decoded": "write print(batch.show(tokenizer)), or batch.decode(number, "
        "tokenizer)",
        "source sources dataset_ids": "write batch.source_ids",
        "pixel_values images image_grid_thw": "write batch.media",
        "num_items num_loss num_items_in_the_batch": "write batch.num_loss_tokens",
        "epoch index batch_idx": "write batch.step and batch.lane",
        "backward mean item": "write batch.loss(logits).backward()",
        "tensor tensors arrays": "write batch.input_ids, or batch.numpy() for all arrays",
        "clone detach copy": "leave it out: batches are not reused",
        "shift shift_labels shifted_labels": "write batch.next_tokens()",
        "state_dict": "write loader.state_dict()",
    }
)
