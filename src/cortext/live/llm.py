"""A large language model in a live search, which must not keep the next frame waiting."""

from __future__ import annotations

from pathlib import Path

from cortext.decoding import Decoder, Hypothesis, NBest
from cortext.decoding.options import DecoderOptions
from cortext.live.log import event

LIVE_BUDGET_MS = 40.0
"""How long a look at the live hypotheses may hold up a step of 80 ms, where `llm.budget_ms` says
nothing (0).
"""


def in_time(options: DecoderOptions) -> DecoderOptions:
    """The options, with a bound on how long the search waits for a large model.

    Live there is always one.
    """
    return (
        options
        if options.llm.budget_ms
        else options.changed({"llm": {"budget_ms": LIVE_BUDGET_MS}})
    )


def with_llm(
    decoder: Decoder, model: str, lora: Path | None = None, device: str = "auto"
) -> Decoder:
    """The decoder with a large model, loaded and warm.

    Args:
        model, lora, device: As `cortext.decoding.llm.model.CausalLM.load` takes them.

    Raises:
        LanguageModelError: For a model that cannot be used, MissingLibrary without transformers.
    """
    from cortext.decoding.llm.fusion import scorer
    from cortext.decoding.llm.large_model import LanguageReader

    reader = LanguageReader.load(model, lora, device)
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
    event("llm_loaded", **reader.describe())
    return decoder.with_llm(reader)


class Notes:
    """Writes what the large model of a decoder notes (a context that was cut, say) into the log,
    each once.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self._n_told = decoder, 0

    def tell(self) -> None:
        """Write what is new."""
        notes: list[str] = getattr(getattr(self._decoder.llm, "lm", None), "notes", [])
        for note in notes[self._n_told :]:
            event("llm_note", "warning", note=note)
        self._n_told = len(notes)
