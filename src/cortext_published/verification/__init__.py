"""Verification of a published data set on its owner's machine: checks against published facts."""

from cortext_published.verification.checks import Check, Verification
from cortext_published.verification.published import Published, PublishedT12, t12_facts, t15_facts
from cortext_published.verification.t12 import verify_t12
from cortext_published.verification.t15 import verify_t15

__all__ = [
    "Check",
    "Published",
    "PublishedT12",
    "Verification",
    "t12_facts",
    "t15_facts",
    "verify_t12",
    "verify_t15",
]
