"""Search for options of the decoder, on the logits of an evaluation."""
