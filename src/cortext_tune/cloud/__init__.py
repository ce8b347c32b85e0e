"""Training on rented TPUs and GPUs, through SkyPilot."""

from cortext_tune.cloud.job import Launch, launch

__all__ = ["Launch", "launch"]
