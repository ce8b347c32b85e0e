"""`cortext bench speech-llm`: what training a speech LLM costs, setting by setting."""
