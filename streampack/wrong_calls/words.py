"""Tables of arguments of other libraries, and the calls that take their place here.

``{value}`` stands for the value of the argument.
"""

from __future__ import annotations


def by_name(table: dict[str, str]) -> dict[str, str]:
    """Return a table with a line per name; the keys of `table` are names between blanks."""
    return {name: words for names, words in table.items() for name in names.split()}


_LEAVE_OUT = "leave it out"
_ROWS = "pass seq_len={value}, the tokens of a row"

#: Arguments of `PackedDataset` by other names, or of other objects.
OF_DATASETS = by_name(
    {
        # rows
        "max_length max_seq_length max_seq_len max_len block_size seq_length sequence_length "
        "sequence_len context_length context_size context_window ctx_len n_ctx chunk_size "
        "chunk_length model_max_length max_position_embeddings cutoff_len pack_length "
        "packed_length": _ROWS,
        "packing sample_packing pack neat_packing packing_strategy": "leave it out: documents are "
        "always packed into rows; packer= names another packing algorithm",
        "truncation": 'pass packer=BestFitDecreasing(seq_len=..., overflow="truncate")',
        "padding pad_to_multiple_of padding_side pad_to_max_length": "leave it out: rows are full; "
        "packer=Pad(seq_len=...) puts one document into each row",
        "stride return_overflowing_tokens": "leave it out: longer documents are split, and every "
        "token is delivered once",
        "add_special_tokens add_eos_token add_eos append_eos": "leave it out: a text ends with "
        'EOS; token_rules=TokenRules(eos="as-is") adds none',
        "return_tensors": "leave it out: batches hold torch tensors; batch.numpy() returns arrays",
        # tokens
        "eos_token eos_token_id eod_token eod_id": "pass token_rules=TokenRules(eos_id=...)",
        "pad_token pad_token_id": "pass token_rules=TokenRules(pad_id=...)",
        "tokenizer_path tokenizer_name tokenizer_name_or_path processing_class tok enc encoding": (
            "pass tokenizer= with the path of a tokenizer.json, or a tokenizer object"
        ),
        "tokenize tokenize_fn tokenize_function": "pass tokenizer= with the tokenizer",
        # batches
        "per_device_train_batch_size per_device_eval_batch_size per_device_batch_size "
        "micro_batch_size train_batch_size mbs bs batchsize": "pass batch_size={value}, rows per "
        "batch of each rank",
        "global_batch_size": "pass batch_size= with the rows per batch of each rank",
        "gradient_accumulation_steps accumulate grad_accum": "leave it out: "
        "loader.accumulate(batches) groups the batches of a step",
        "collate_fn data_collator collator": "leave it out: the dataset makes whole batches; "
        "PackedLoader(dataset, transform=function) converts each",
        "drop_last dataloader_drop_last": 'pass PackedLoader(dataset, end="stop")',
        "persistent_workers worker_init_fn dataloader_num_workers num_proc": "leave it out: "
        "PackedLoader(dataset, num_workers=...) starts the workers",
        "sampler batch_sampler generator distributed_sampler": "leave it out: shuffle=, seed= and "
        "the ranks decide which documents come when",
        # columns and sources
        "dataset_text_field text_field text_column text_key text_column_name content_field "
        "content_key column field column_name text_col": "pass text={value}",
        "token_column tokens_column token_field input_ids_field ids_column token_key": (
            "pass tokens={value}"
        ),
        "labels label_column labels_field label_field mask loss_mask_field": (
            "pass loss_mask={value}"
        ),
        "path paths data data_path data_files data_dir files file filename dataset dataset_name "
        "train_dataset dataset_path urls url remote input_dir urlpath train_data": "pass it first, "
        "as in PackedDataset({value}, seq_len=...)",
        "local cache cache_folder download_dir": "pass PackedDataset(sources.open(source, storage="
        "sources.Storage(cache_dir={value})), seq_len=...)",
        "cache_limit cache_size": "pass PackedDataset(sources.open(source, storage=sources.Storage("
        "cache_limit_bytes=...)), seq_len=...)",
        "predownload download_retry download_timeout": "leave it out: files are fetched ahead; "
        "sources.Storage has the limits",
        "split subset name": "leave it out: name the files of the split, as in "
        'PackedDataset("data/train/*.parquet", seq_len=...)',
        "streaming stream keep_in_memory in_memory": "leave it out: files are always streamed",
        "streams datasets sources proportion proportions probabilities weights mixture "
        "stopping_strategy blend": "pass PackedDataset(sources.Mixture({name: source}, "
        "weights={name: share}), seq_len=...)",
        "formatting_func formatting_function preprocess preprocess_fn preprocessing transform "
        "transforms processing_fn records": "pass PackedDataset(sources.open(source, "
        "records=function), seq_len=...), or sources.Chat(source, records=function) for "
        "conversations",
        "map_fn preprocess_function": "pass map=function, which gets (documents, seeds)",
        "filter_fn": "pass filter=function, which gets (documents, seeds)",
        "remove_columns columns select_columns": "leave it out: other columns are not read; "
        "token_fields= and document_fields= add some to batches",
        "chat_template": "pass PackedDataset(sources.Chat(source, template={value}), seq_len=...)",
        "assistant_only_loss completion_only_loss train_on_inputs mask_prompt response_template "
        "train_on_prompt": "leave it out: sources.Chat(source) learns the assistant's turns only",
        # order and ranks
        "buffer_size shuffle_buffer shuffle_buffer_size shuffle_block_size shuffle_algo "
        "shuffle_size shardshuffle shard_shuffle initial": "leave it out: shuffle=True shuffles "
        "shards and the documents of their blocks; ReadOptions(open_shards=) mixes more shards",
        "shuffle_seed random_seed random_state data_seed": "pass seed={value}",
        "num_epochs num_train_epochs n_epochs epoch repeat": "pass epochs={value}",
        "resampled infinite endless loop": "pass epochs=None for an endless run",
        "rank world_size num_replicas process_rank num_processes dp_rank dp_world_size "
        "local_rank process_index process_count": "leave it out, as ranks are detected, or pass "
        "topology=Topology(rank, world_size)",
        "nodesplitter workersplitter split_by_node num_canonical_nodes split_by_worker": (
            "leave it out: ranks and workers never read the same documents"
        ),
        "handler ignore_errors skip_errors errors": 'pass on_error="skip"',
        "max_steps total_steps max_samples num_samples limit": "leave it out: "
        "itertools.islice(loader, steps) ends a loop early",
        "length size epoch_size with_length": "leave it out: loader.estimate_steps() estimates the "
        "steps of the run",
        "position_ids return_position_ids": "leave it out: batch.position_ids is always there",
        "attention_mask attn_implementation cross_document_attention": 'pass attention="document" '
        'or "row"',
        "dynamic_batching max_batch_tokens batch_tokens tokens_per_batch max_tokens": "pass "
        "seq_len= and batch_size=, whose product are the tokens of a batch",
        "processor_name image_processor feature_extractor": "pass processor= with a transformers "
        "processor",
    }
)

#: Arguments of `PackedLoader`; arguments of the dataset are recognised by its signature.
OF_LOADERS = by_name(
    {
        "collate_fn data_collator collator": "pass PackedLoader(dataset, transform=function), a "
        "function of one PackedBatch",
        "drop_last": 'pass PackedLoader(dataset, end="stop")',
        "sampler batch_sampler generator distributed_sampler": "leave it out: "
        "PackedDataset(source, shuffle=..., seed=...) decides the order, and each rank gets "
        "its own batches",
        "persistent_workers": "leave it out: workers live as long as an iteration, and one "
        "iteration covers all epochs of PackedDataset(source, epochs=...)",
        "worker_init_fn in_order": _LEAVE_OUT,
        "pin_memory_device": "pass PackedLoader(dataset, device=...), which copies batches there",
        "workers n_workers num_proc dataloader_num_workers": (
            "pass PackedLoader(dataset, num_workers={value})"
        ),
        "prefetch prefetch_batches buffer_size": (
            "pass PackedLoader(dataset, num_workers=..., prefetch_factor={value})"
        ),
        "accumulate gradient_accumulation_steps grad_accum": "leave it out: "
        "for group in loader.accumulate({value}) iterates over the steps",
        "state state_dict resume checkpoint": "leave it out: call loader.load_state_dict(state)",
        "rank world_size num_replicas topology dp_rank dp_world_size": "pass PackedDataset(source, "
        "topology=Topology(rank, world_size))",
        "max_steps total_steps num_batches limit": "leave it out: itertools.islice(loader, steps) "
        "ends a loop early",
    }
)

#: Arguments of sources.
OF_SOURCES = by_name(
    {
        "text_field text_column text_key column field content_field dataset_text_field": (
            "pass text={value}"
        ),
        "token_column tokens_column token_field input_ids": "pass tokens={value}",
        "chat_template": "pass sources.Chat(source, template={value})",
        "template turns thoughts learn shape template_kwargs": "pass sources.Chat(source, ...)",
        "cache_dir local": "pass storage=sources.Storage(cache_dir={value})",
        "storage_options": "pass storage=sources.Storage(storage_options=...)",
        "formatting_func formatting_function map preprocess transform function": (
            "pass records=function"
        ),
        "weights proportion probabilities": "pass sources.Mixture({name: source}, weights=...)",
        "split name": "leave it out: name the files of the split",
        "streaming": "leave it out: files are always streamed",
    }
)
