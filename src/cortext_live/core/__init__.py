"""Live decoding without input or output: features in, words out, and what all servers share."""
