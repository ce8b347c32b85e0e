"""Live decoding: bins of neural features in, words out, for rigs (Redis, BRAND) and a web page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext_live.core.pipeline import Pipeline

__all__ = ["Pipeline"]
# The commands of this package are listed without waiting for torch.
__getattr__ = lazily(__name__, {"Pipeline": ".core.pipeline"})
