"""The runners, one file per library."""
