"""In-context order of a whole corpus: related documents side by side in new shards, on Ray.

Knows sources, embeddings, neighbours and the writers of shards; it does not know rows, batches or
training. The stages are in `embed`, `search`, `duplicates` and `write`; `job` runs them.
"""

from streampack.corpus_order.job import order_corpus, run_job
from streampack.corpus_order.settings import CorpusOrder
from streampack.corpus_order.summary import Summary

__all__ = ["CorpusOrder", "Summary", "order_corpus", "run_job"]
