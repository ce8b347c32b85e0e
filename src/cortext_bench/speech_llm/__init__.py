"""`cortext bench speech-llm`: cost of training a speech LLM, setting by setting."""
