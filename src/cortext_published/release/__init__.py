"""The public release of the T15 baseline: its settings file, and its checkpoints in and out."""
