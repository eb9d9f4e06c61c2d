"""Reports about a run before it is read: its plan, steps, progress and provenance."""
