"""Learning from daily use: a model that goes on learning from what it decoded."""
