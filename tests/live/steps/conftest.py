"""A small run with its recordings."""

from tiny_evaluation import tiny

__all__ = ["tiny"]
