"""Live decoding.

Frames of neural features in, words out, for rigs (Redis, BRAND) and for people to watch.
"""
