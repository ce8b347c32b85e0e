"""`cortext bench llm`: effect of language models on word errors, and their cost."""
