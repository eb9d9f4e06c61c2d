"""In-context order of a whole corpus: writes related documents next to each other, on Ray.

The stages are in `embed`, `search`, `duplicates` and `write`; `job` runs them. They use sources,
embeddings, neighbours and the writers of shards, no rows, batches or training.
"""

from streampack.corpus_order.job import order_corpus, run_job
from streampack.corpus_order.settings import CorpusOrder
from streampack.corpus_order.summary import Summary

__all__ = ["CorpusOrder", "Summary", "order_corpus", "run_job"]
