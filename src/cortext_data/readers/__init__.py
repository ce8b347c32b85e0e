"""Readers of recordings: a file for each published format, and those for the files of any lab."""
