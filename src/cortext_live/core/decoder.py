"""A decoder in live use: bounded options, a bounded wait for the large model, no long pauses."""

from __future__ import annotations

import gc
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cortext.decoding import Decoder, DecoderOptions, Hypothesis, NBest
from cortext.decoding.nbest import FRAME_MS
from cortext.errors import DecodingError
from cortext.settings import Setting
from cortext.text.language import EN, Language
from cortext_live.core.log import event

LIVE_BUDGET_MS = 40.0
"""Milliseconds that a query of the large model may hold up a step of 80 ms, where `llm.budget_ms`
is 0; steps of another length in proportion.
"""
LIVE_PATIENCE_S = 20.0
"""Seconds that the end of an utterance waits for the large model; then it is the n-gram's."""


def in_time(options: DecoderOptions, frame_ms: float = FRAME_MS) -> DecoderOptions:
    """Return the options with a bound on the wait for a large model; live decoding needs one."""
    return (
        options
        if options.llm.budget_ms
        else options.changed({"llm": {"budget_ms": LIVE_BUDGET_MS * frame_ms / FRAME_MS}})
    )


def with_llm(
    decoder: Decoder, model: str, lora: Path | None = None, device: str = "auto"
) -> Decoder:
    """Return the decoder with a large model, loaded and warm.

    Args:
        decoder: The word search.
        model: Directory of the model, or its name at the Hugging Face Hub.
        lora: Directory of a LoRA adapter.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`.

    Raises:
        LanguageModelError: The model cannot be used.
        MissingLibrary: transformers is not installed.
    """
    from cortext_lm.llm.fusion import scorer
    from cortext_lm.llm.large_model import LLM

    reader = LLM.load(model, lora, device)
    # the first pass of a model takes many times longer than the next ones, and shows whether there
    # is memory for it
    reader.read(
        [NBest((Hypothesis("how are you", 0.0, 0.0, 0.0),))],
        DecoderOptions(),
        "what was said before",
    )
    if decoder.options.llm.mode == "fusion":
        lm = reader.lm
        scorer(lm, lm.prefix(), decoder.options.llm.cache_mb).score([lm.tokens("how are you")])
    reader.wait_at_most(LIVE_PATIENCE_S)
    event("llm_loaded", **reader.describe())
    return decoder.with_llm(reader)


class Notes:
    """The notes of a decoder's language models, each logged once.

    Those of the n-gram are logged at once, those of a large model (a context that was cut, say)
    when they come.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._n_written = 0
        for note in decoder.lm.notes:
            event("lm_note", "warning", note=note)

    def write_new(self) -> None:
        """Log the notes that have come since the last call."""
        notes: list[str] = getattr(getattr(self._decoder.llm, "lm", None), "notes", [])
        for note in notes[self._n_written :]:
            event("llm_note", "warning", note=note)
        self._n_written = len(notes)


LIVE_BOUNDS = {
    "max_active": Setting(minimum=1, maximum=20_000),
    "min_active": Setting(minimum=1, maximum=20_000),
    "nbest": Setting(minimum=1, maximum=1_000),
}
"""Bounds on options that decide how long a step and the end of an utterance take."""
LONGEST_BUDGET_MS = 1_000.0
LONGEST_WORD = 64
"""Most letters of a hotword."""
MOST_HOTWORDS = 1_000


def check_options(options: DecoderOptions) -> None:
    """Raise DecodingError for options that a live search could not keep up with."""
    for name, setting in LIVE_BOUNDS.items():
        if not setting.accepts(value := getattr(options, name)):
            raise DecodingError(f"{name} is {value}; live it must be {setting.needed(value)}")
    if options.llm.budget_ms > LONGEST_BUDGET_MS:
        problem = (
            f"llm.budget_ms is {options.llm.budget_ms:g}; live it must be at most"
            f" {LONGEST_BUDGET_MS:g}"
        )
        raise DecodingError(problem)


def checked_hotwords(bonuses: Mapping[str, float], language: Language = EN) -> dict[str, float]:
    """Return hotwords in Unicode NFC and as decoded text has them.

    Args:
        bonuses: Bonus by word.
        language: The language model's.

    Raises:
        DecodingError: For too many or too long words, for characters that nobody sees, for letters
            that the language lacks, and for texts that are no word of it.
    """
    if len(bonuses) > MOST_HOTWORDS:
        raise DecodingError(f"{len(bonuses)} hotwords; at most {MOST_HOTWORDS} can be favoured")
    checked = {}
    for typed, bonus in bonuses.items():
        word = unicodedata.normalize("NFC", typed)
        if len(word) > LONGEST_WORD:
            raise DecodingError(
                f"{word[:20]!r}... has {len(word)} letters; at most {LONGEST_WORD} are a word"
            )
        # Marks of direction, for one, would turn around the line that shows the word.
        if any(unicodedata.category(character) == "Cf" for character in word):
            raise DecodingError(
                f"hotword {word!r} has a character that nobody sees", fix="leave it out"
            )
        checked[_in_text(word, language)] = bonus
    return checked


def _in_text(word: str, language: Language) -> str:
    """Return a hotword as decoded text has it. Raises DecodingError where text cannot have it."""
    if language.is_benchmark:  # else it is as the lexicon has it, or none of its letters
        return word.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    fix = "write it with the language's letters"
    if lost := language.damage(word):
        problem = f"hotword {word!r} has {' '.join(lost)}, which language {language.name!r} lacks"
        raise DecodingError(problem, fix=fix)
    words = language.normalize(word).split()
    if words and "".join(words) == word:  # where each character is a word, several make a hotword
        return word
    if len(words) != 1:
        raise DecodingError(f"hotword {word!r} is no word of language {language.name!r}", fix=fix)
    return words[0]


@contextmanager
def no_long_pauses() -> Iterator[None]:
    """Keep Python's garbage collection short inside; to be entered when everything is loaded.

    Now and then Python searches all objects for those that nothing refers to any more. With torch
    loaded that takes 90 ms, longer than a frame: objects that exist on entering are left out.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
