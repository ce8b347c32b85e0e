"""A brain encoder aligned to an audio LLM, which writes the sentence."""
