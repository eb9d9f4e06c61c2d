"""Groups in a stream: the documents of a record become one document of the window.

What the window, packers and states see is a group's length; `split_groups` gives its documents back
when rows are gathered. A group is what is left of its record: a document that is empty, or that a
filter refuses, is missing in it.
"""

from __future__ import annotations

import numpy as np

from streampack.documents.blocks import Documents, joined_groups


def apart(documents: Documents) -> Documents:
    """The documents that the groups of a block consist of; a block without groups as it is."""
    members = documents.members
    if members is None:
        return documents
    return members.documents[int(members.offsets[0]) : int(members.offsets[-1])]


def together(documents: Documents) -> Documents:
    """The block in which documents side by side that have one origin are a group."""
    if not len(documents):
        return documents
    shard, index = (documents.origin[name] for name in ("shard", "index"))
    begins = np.flatnonzero((shard[1:] != shard[:-1]) | (index[1:] != index[:-1])) + 1
    return joined_groups(documents, np.concatenate([[0], begins, [len(documents)]]))
