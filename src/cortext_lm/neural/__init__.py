"""Small causal language models that the project trains, in transformers' format.

A model is a tokenizer of word pieces and a network.
"""
