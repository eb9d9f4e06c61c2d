from streampack.elastic.loader import ElasticLoader as ElasticLoader
from streampack.elastic.members import GroupMembers as GroupMembers
from streampack.elastic.members import Members as Members
from streampack.elastic.members import StoreMembers as StoreMembers
