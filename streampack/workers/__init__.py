"""Worker processes of a loader."""
