"""pyctcdecode, as far as it goes: it spells words with letters and has no lexicon.

Each phoneme is given a letter, SIL is the blank between words, and the n-gram is asked for the most
frequent word with a spelling, so one of every set of homophones is never found. Its word endings
need a SIL. Plain Python, so it gets every fifth utterance only. It pins an old numpy but runs with
a new one if installed with `pip --no-deps`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from cortext.text.inventory import BLANK, SIL
from cortext.text.lexicon import CODE_OF, Lexicon
from cortext_bench.decoder.searcher import INVENTORY, Paths, Settings, distinct, with_blank_penalty
from cortext_bench.workers import Missing


class _SpeltModel:
    """A KenLM model whose words are spelt in phonemes."""

    def __init__(self, model: Any, word_of: dict[str, str]) -> None:
        self._model = model
        self._word_of = word_of
        self.order = model.order
        self.path = model.path

    def __contains__(self, spelling: str) -> bool:
        return spelling in self._word_of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def BaseScore(self, before: Any, spelling: str, after: Any) -> float:
        """log10 p(word | before); `</s>` stays itself."""
        score: float = self._model.BaseScore(before, self._word_of.get(spelling, spelling), after)
        return score


class PyCtc:
    """pyctcdecode with KenLM."""

    package = "pyctcdecode"
    note = (
        "no lexicon: one of each set of homophones is found; needs SIL between words; every 5th"
        " utterance"
    )
    one_of = 5
    steps: ClassVar = {
        "alpha": (0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0),
        "beta": (-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0),
        "blank_penalty": (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0),
        "beam_width": (25, 50, 100, 200, 300),
        "beam_prune_logp": (-15.0, -12.0, -10.0, -8.0, -6.0),
        "token_min_logp": (-9.0, -7.0, -6.0, -5.0, -4.0),
    }
    start: ClassVar[Settings] = {
        "alpha": 1.4,
        "beta": 1.0,
        "blank_penalty": 2.0,
        "beam_width": 100,
        "beam_prune_logp": -10.0,
        "token_min_logp": -5.0,
    }
    speed: ClassVar = {"beam_width": -1, "beam_prune_logp": 1, "token_min_logp": 1}
    sizes: ClassVar = tuple({"beam_width": width} for width in (25, 50, 100, 200))

    def __init__(self, paths: Paths) -> None:
        try:
            import kenlm
            from pyctcdecode.alphabet import Alphabet
            from pyctcdecode.decoder import BeamSearchDecoderCTC
            from pyctcdecode.language_model import LanguageModel
        except ImportError as error:
            raise Missing(
                f"{error}", fix="pip install kenlm pygtrie, then pip install --no-deps pyctcdecode"
            ) from None
        model = kenlm.Model(str(paths.model))
        self._word_of: dict[str, str] = {}
        lexicon = Lexicon.read(paths.lm / "lexicon.txt")
        for word in sorted(lexicon, key=lambda word: -model.score(word, bos=False, eos=False)):
            for code in lexicon.codes[word].split(" "):
                self._word_of.setdefault(code, word)
        letters = {BLANK: "", SIL: " "} | CODE_OF
        alphabet = Alphabet([letters[symbol] for symbol in INVENTORY.symbols], False)
        language_model = LanguageModel(_SpeltModel(model, self._word_of), list(self._word_of))
        self._decoder = BeamSearchDecoderCTC(alphabet, language_model)
        self.configure(self.start)

    def configure(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self._penalty = settings["blank_penalty"]
        self._decoder.reset_params(alpha=settings["alpha"], beta=settings["beta"])
        self._beam = {
            name: settings[name] for name in ("beam_width", "beam_prune_logp", "token_min_logp")
        }

    def decode(self, log_probs_PV: np.ndarray) -> Any:
        """Search one utterance."""
        return self._decoder.decode_beams(
            with_blank_penalty(log_probs_PV, self._penalty), **self._beam
        )

    def texts(self, found: Any) -> list[str]:
        """Return the different sentences, best first; a spelling that is no word is left out."""
        spelt = [beam[0].split() for beam in found]
        return distinct(
            [
                " ".join(self._word_of[code] for code in codes if code in self._word_of)
                for codes in spelt
            ]
        )
