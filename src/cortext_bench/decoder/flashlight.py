"""flashlight-text's lexicon decoder with KenLM, set up as well as it allows.

Its trie keeps six words per spelling and drops the others without an error, so words are inserted
by frequency. SIL is allowed at the root of its trie in any number and never required, which suits
spellings without SIL; the labs' lexicons close every word with SIL; tuning may choose either or
both. It has no blank penalty: the blank's log-probability is lowered before. Its n-gram scores are
decimal logarithms, so its LM weight of 2.3 is that of 1 for natural ones. Every candidate of its
last beam comes back with its words, so its n-best list is in its time.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from cortext.text.lexicon import Lexicon
from cortext_bench.decoder.searcher import INVENTORY, Paths, Settings, distinct, with_blank_penalty
from cortext_bench.workers import Missing

SPELLINGS = {"plain": (False,), "closed": (True,), "both": (False, True)}
"""True if the spellings of a word end with SIL."""


class Flashlight:
    """flashlight-text: KenLM, lexicon trie smeared with the best unigram."""

    package = "flashlight-text"
    note = ""
    one_of = 1
    steps: ClassVar = {
        "lm_weight": (1.0, 1.4, 1.7, 2.0, 2.4, 2.8, 3.2, 3.7, 4.2, 5.0, 6.0, 8.0),
        "word_score": (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0),
        "sil_score": (-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0),
        "blank_penalty": (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0),
        "log_add": (False, True),
        "spelling": ("plain", "closed", "both"),
        "beam_threshold": (6.0, 8.0, 10.0, 12.0, 15.0, 18.0, 22.0, 26.0, 30.0, 40.0),
        "beam_size": (50, 100, 200, 300, 500, 750, 1000, 1500),
        "beam_size_token": (10, 15, 20, 30, 41),
    }
    start: ClassVar[Settings] = {
        "lm_weight": 3.2,
        "word_score": 0.0,
        "sil_score": -0.5,
        "blank_penalty": 8.0,
        "log_add": True,
        "spelling": "closed",
        "beam_threshold": 18.0,
        "beam_size": 1500,
        "beam_size_token": 20,
    }
    speed: ClassVar = {"beam_threshold": -1, "beam_size": -1, "beam_size_token": -1}
    sizes: ClassVar = tuple(
        {"beam_threshold": threshold, "beam_size": size, "beam_size_token": tokens}
        for threshold, size, tokens in (
            (8.0, 50, 10), (10.0, 50, 10), (10.0, 100, 10), (12.0, 100, 10), (12.0, 200, 15),
            (15.0, 200, 15), (15.0, 300, 20), (18.0, 500, 20), (18.0, 750, 20), (22.0, 1500, 30),
        )
    )  # fmt: skip

    def __init__(self, paths: Paths) -> None:
        try:
            from flashlight.lib.text import decoder, dictionary
            from flashlight.lib.text.decoder.kenlm import KenLM
        except ImportError as error:
            raise Missing(
                f"flashlight-text cannot be imported: {error}", fix="pip install flashlight-text"
            ) from None
        self._module = decoder
        self._lexicon = Lexicon.read(paths.lm / "lexicon.txt")
        self._words = dictionary.Dictionary(list(self._lexicon))
        self._words.add_entry("<unk>")
        self._words.set_default_index(self._words.get_index("<unk>"))
        self._lm = KenLM(str(paths.model), self._words)
        begin = self._lm.start(False)
        self._unigram = {
            word: self._lm.score(begin, self._words.get_index(word))[1] for word in self._lexicon
        }
        self._tries: dict[str, Any] = {}
        self._penalty = 1.0
        self.configure(self.start)

    def _trie(self, spelling: str) -> Any:
        """Return the trie of one way to spell words; keep one at a time, as each takes memory."""
        if spelling not in self._tries:
            self._tries = {}
            trie = self._module.Trie(len(INVENTORY), INVENTORY.sil)
            # A node of the trie keeps six words and silently drops later ones: add the most
            # probable first.
            for word in sorted(self._lexicon, key=lambda word: -self._unigram[word]):
                for pronunciation in self._lexicon.pronunciations(word):
                    tokens = INVENTORY.ids(pronunciation).tolist()
                    for closed in SPELLINGS[spelling]:
                        spelt = [*tokens, INVENTORY.sil] if closed else tokens
                        trie.insert(spelt, self._words.get_index(word), self._unigram[word])
            trie.smear(self._module.SmearingMode.MAX)
            self._tries[spelling] = trie
        return self._tries[spelling]

    def configure(self, settings: Settings) -> None:
        """Use other settings from now on."""
        options = self._module.LexiconDecoderOptions(
            beam_size=settings["beam_size"],
            beam_size_token=settings["beam_size_token"],
            beam_threshold=settings["beam_threshold"],
            lm_weight=settings["lm_weight"],
            word_score=settings["word_score"],
            unk_score=-np.inf,
            sil_score=settings["sil_score"],
            log_add=settings["log_add"],
            criterion_type=self._module.CriterionType.CTC,
        )
        self._penalty = settings["blank_penalty"]
        unknown = self._words.get_index("<unk>")
        trie = self._trie(settings["spelling"])
        self._decoder = self._module.LexiconDecoder(
            options, trie, self._lm, INVENTORY.sil, INVENTORY.blank, unknown, [], False
        )

    def decode(self, log_probs_PV: np.ndarray) -> Any:
        """Search one utterance."""
        scores_PV = with_blank_penalty(log_probs_PV, self._penalty)
        return self._decoder.decode(scores_PV.ctypes.data, *scores_PV.shape)

    def texts(self, found: Any) -> list[str]:
        """Return the different sentences of the last beam, best first."""
        entry = self._words.get_entry
        return distinct(
            [" ".join(entry(word) for word in result.words if word >= 0) for result in found]
        )
