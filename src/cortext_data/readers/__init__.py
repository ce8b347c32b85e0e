"""Readers of published recordings and results, one file per format."""
