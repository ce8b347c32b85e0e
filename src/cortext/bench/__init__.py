"""Benchmarks behind `cortext bench`: each compares with the best alternative in one run, side by side."""
