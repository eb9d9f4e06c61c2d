"""The processes of a job: which rank this is, what ranks exchange, who lists the shards.

Knows ranks, counts and numbers of batches; it does not know what a batch or a shard holds.
"""
