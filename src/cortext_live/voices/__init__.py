"""Voices: text to speech, the same wave for the same text on every call."""

from __future__ import annotations

from cortext.arguments import check_text
from cortext.errors import TextError
from cortext.text.language import EN, Language
from cortext_live.voices.voice import SAMPLE_RATE, Voice

__all__ = ["DEFAULT", "SAMPLE_RATE", "Voice", "open_voice"]

DEFAULT = "facebook/mms-tts-eng"
"""Name of the voice that is used where none is named."""


def open_voice(name: str = DEFAULT, language: Language = EN) -> Voice:
    """Open the voice of that name.

    Args:
        name: `formant`, the project's own synthesiser; `espeak-ng`, the program; else a VITS model
            of transformers, as a directory or by its name on the Hugging Face Hub.
        language: Language of the texts. `formant` and the default voice speak English only; a VITS
            model speaks the language that it was trained on.

    Raises:
        TextError: For a language that the voice does not speak.
        MissingLibrary: Where the voice's library or program is not installed.
        LanguageModelError: For a model that cannot be loaded.
    """
    check_text(name, "voice")
    if name in ("formant", DEFAULT) and not language.is_benchmark:
        raise TextError(
            f"the voice {name!r} speaks English only, not language {language.name!r}",
            fix="give espeak-ng, or a VITS model of the language",
        )
    if name == "formant":
        from cortext_live.voices.formant import FormantVoice

        return FormantVoice()
    if name == "espeak-ng":
        from cortext_live.voices.espeak import EspeakVoice

        return EspeakVoice(language)
    from cortext_live.voices.vits import VitsVoice

    return VitsVoice.load(name)
