"""Benchmarks behind `cortext bench`: each runs side by side with the best alternative."""
