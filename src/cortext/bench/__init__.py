"""Benchmarks behind `cortext bench`.

Each compares with the best alternative in one run, side by side.
"""
