"""Training on rented TPUs and GPUs, through SkyPilot."""

from cortext.cloud.job import Launch, launch

__all__ = ["Launch", "launch"]
