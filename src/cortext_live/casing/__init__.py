"""Casing and punctuation of decoded text, for people who read or hear it.

Scores and logs keep the text as it was decoded.
"""

from __future__ import annotations

from pathlib import Path

from cortext.errors import ConfigError
from cortext.text.language import Language
from cortext_live.casing.rules import RuleCaser
from cortext_live.casing.writing import Caser, NoCasing

__all__ = ["Caser", "NoCasing", "RuleCaser", "caser_for"]


def caser_for(language: Language, model: Path | None = None) -> Caser:
    """Return the caser of a language.

    Args:
        language: Language of the decoded text.
        model: File of `cortext lm train-case`; None: rules for English, none for other languages.

    Raises:
        TextError: The file is no casing model, or it is damaged.
        ConfigError: The model reads another language.
    """
    if model is None:
        return RuleCaser() if language.is_benchmark else NoCasing(language.name)
    from cortext_live.casing.model import read_caser  # torch takes seconds to load

    caser = read_caser(model)
    if caser.card.language != language:
        raise ConfigError(
            f"the casing model reads language {caser.language!r}, and decoded text is"
            f" {language.name!r}",
            where=model,
            fix="give one that `cortext lm train-case --language` made, or none",
        )
    return caser
