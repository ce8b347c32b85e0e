"""A node of BRAND: bins of features in, logits and words out."""
