"""Learning from daily use: a model that keeps learning from the sentences it decoded."""
