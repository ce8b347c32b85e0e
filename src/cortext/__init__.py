"""Intracortical recordings of attempted speech, decoded into text."""
