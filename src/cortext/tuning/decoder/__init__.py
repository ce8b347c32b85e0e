"""Search for options of the decoder, on the logits of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext.tuning.decoder.result import Tuned
    from cortext.tuning.decoder.search import tune_decoder
    from cortext.tuning.decoder.space import DecoderSearch

__all__ = ["DecoderSearch", "Tuned", "tune_decoder"]
# Nothing is loaded before it is used, as in `cortext.tuning`.
__getattr__ = lazily(
    __name__, {"DecoderSearch": ".space", "Tuned": ".result", "tune_decoder": ".search"}
)
