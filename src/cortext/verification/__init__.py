"""Verification of a published data set on its owner's machine: checks against published facts."""

from cortext.verification.checks import Check, Verification
from cortext.verification.published import Published, t15_facts
from cortext.verification.t15 import verify_t15

__all__ = ["Check", "Published", "Verification", "t15_facts", "verify_t15"]
