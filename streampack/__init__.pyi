from . import errors as errors
from . import ordering as ordering
from . import packing as packing
from . import sources as sources
from . import trainers as trainers
from .batch import PackedBatch as PackedBatch
from .batch.isolation import check_isolation as check_isolation
from .checking.check import check as check
from .checking.marked import marked_documents as marked_documents
from .checking.report import CheckReport as CheckReport
from .dataset import PackedDataset as PackedDataset
from .errors import StreampackError as StreampackError
from .in_memory.pack import pack as pack
from .job.topology import Topology as Topology
from .loader import PackedLoader as PackedLoader
from .ordering import SimilarityOrder as SimilarityOrder
from .packing import BestFitDecreasing as BestFitDecreasing
from .packing import Buckets as Buckets
from .packing import Concat as Concat
from .packing import Pad as Pad
from .run.state import DistributedState as DistributedState
from .run.state import merge_states as merge_states
from .streams.hooks import Hook as Hook
from .tokenization import Tokenizer as Tokenizer
from .tokenization import TokenRules as TokenRules
from .window.config import WindowConfig as WindowConfig

__version__: str
