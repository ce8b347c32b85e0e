"""`cortext bench llm`: what language models do for word errors, and what that costs."""
