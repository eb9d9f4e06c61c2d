from . import ordering as ordering
from . import packing as packing
from . import sources as sources
from .batch import PackedBatch as PackedBatch
from .consumers.loss import token_mean_loss as token_mean_loss
from .dataset import PackedDataset as PackedDataset
from .documents import Documents as Documents
from .documents import Texts as Texts
from .errors import StreampackError as StreampackError
from .hooks import Hook as Hook
from .job.topology import Topology as Topology
from .loader import PackedLoader as PackedLoader
from .ordering import SimilarityOrder as SimilarityOrder
from .packing import BestFitCrop as BestFitCrop
from .packing import BestFitDecreasing as BestFitDecreasing
from .packing import Buckets as Buckets
from .packing import Concat as Concat
from .packing import Curriculum as Curriculum
from .packing import FirstFitDecreasing as FirstFitDecreasing
from .packing import Pad as Pad
from .packing import Seamless as Seamless
from .run.distributed_state import DistributedState as DistributedState
from .run.state import merge_states as merge_states
from .run.torchdata import extract_state as extract_state
from .tokenization import Tokenizer as Tokenizer
from .window.config import WindowConfig as WindowConfig

__version__: str
