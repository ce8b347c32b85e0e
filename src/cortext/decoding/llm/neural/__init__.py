"""Small causal language models of the project's own training, in transformers' format.

Word pieces and a network.
"""
