"""Daily use: the usage log that a decoder writes, its statistics and its report."""
