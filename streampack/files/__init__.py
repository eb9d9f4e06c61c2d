"""Files of documents: the shared parts of all formats."""
