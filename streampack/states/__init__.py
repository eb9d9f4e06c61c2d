"""Saved states: of a lane and of a run, their fingerprint, and where they say a run is."""
