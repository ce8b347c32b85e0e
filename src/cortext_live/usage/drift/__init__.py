"""Drift of recordings: statistics by day, block and array, changes between days, and alerts."""
