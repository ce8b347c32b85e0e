"""Small causal language models of the project's own training, in transformers' format: word pieces and a network."""
