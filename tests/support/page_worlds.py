"""Recordings and language models of other tokens, languages and bins, for tests of live decoding.

As in `page_process.py` the recordings spell tokens: feature v is high while token v is said. So
what is decoded is known by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import page_process
from engine_cases import Grams, write_lm

from cortext.data import make_trial, write_session
from cortext.data.conventions import Conventions
from cortext.data.packed import open_data
from cortext.models.card import Smoothing
from cortext.text.inventory import Inventory
from cortext.text.language import LANGUAGES, Language
from cortext.text.lexicon import Lexicon

DAYS = ("lab.2024.05.06", "lab.2024.05.07")


@dataclass(frozen=True)
class World:
    """Tokens, language and bins, and the words of a language model.

    Attributes:
        conventions: Of the recordings.
        said: Tokens of each word.
        trials: Sentences as read from the screen, and as said.
        stride: Bins of a frame.
        unit: Unit of the language model.
    """

    conventions: Conventions
    said: Mapping[str, str]
    trials: tuple[tuple[str, str], ...]
    stride: int = 4
    unit: str = "word"

    @property
    def inventory(self) -> Inventory:
        return self.conventions.inventory

    def tokens(self, sentence: str) -> list[str]:
        """The label of a sentence."""
        return self.inventory.closed([self.said[word].split() for word in sentence.split()])

    def spoken(self, sentence: str, seed: int = 0) -> np.ndarray:
        """Features float32 [T, C]: each token for two frames, then a blank one, then silence."""
        rng = np.random.default_rng(seed)
        ids = self.inventory.ids(self.tokens(sentence))
        frames = [row for token in ids for row in (token, token, self.inventory.blank)]
        rows = np.repeat([*frames, *[self.inventory.blank] * 4], self.stride)
        x_TC = 0.3 * rng.normal(size=(len(rows), len(self.inventory)))
        x_TC[np.arange(len(rows)), rows] += 3
        return x_TC.astype(np.float32)

    def write_lm(self, folder: Path) -> Path:
        """A bigram model of what is said."""
        texts = [said for _, said in self.trials] * 2 + list(self.said)
        entries = [(word, tokens, 1.0) for word, tokens in self.said.items()]
        if self.unit == "character":
            texts = [" ".join(self.tokens(said)) for _, said in self.trials]
            entries = [(s, s, 1.0) for s in self.inventory.symbols[1:]]
        write_lm(folder, entries, Grams.counted(texts, 2), self.inventory, self.unit)
        facts = json.loads((folder / "lm.json").read_text())
        facts["language"] = self.conventions.language.to_json()
        (folder / "lm.json").write_text(json.dumps(facts))
        return folder

    def write(self, root: Path) -> Path:
        """Recordings and a language model."""
        self.write_lm(root / "lm")
        lexicon = Lexicon(inventory=self.inventory)
        for word, tokens in self.said.items():
            lexicon.add(word, tokens.split())
        for day in DAYS:
            trials = [
                make_trial(
                    self.spoken(said, n),
                    day,
                    1,
                    n,
                    read,
                    conventions=self.conventions,
                    lexicon=lexicon,
                )
                for n, (read, said) in enumerate(self.trials)
            ]
            for split in ("train", "val"):
                write_session(root / "data" / day / f"data_{split}.hdf5", trials)
        open_data(root / "data")
        return root


class Hearing(page_process.Hearing):
    """The model of a world."""

    def __init__(self, world: World) -> None:
        self.sessions, self.session = DAYS, DAYS[-1]
        self.n_features = len(world.inventory)
        self.patch_size, self.patch_stride = 2 * world.stride, world.stride
        self.smoothing, self.conventions = Smoothing(smooth_data=False), world.conventions


SPANISH = World(
    Conventions(
        Inventory(
            "spanish",
            ("_", *"a e i o u f r rr s t k n m l d".split(), "#"),
            "_",
            "#",
            groups=(("vowels", tuple("aeiou")),),
        ),
        LANGUAGES["es"],
    ),
    {
        "frío": "f r i o",
        "frió": "f r i o",
        "tu": "t u",
        "tú": "t u",
        "año": "a n o",
        "el": "e l",
        "en": "e n",
        "más": "m a s",
    },
    (("El frío.", "el frío"), ("¡Más frío en el año!", "más tu en el año"), ("Tú", "tú")),
)
HEBREW = World(
    Conventions(
        Inventory(
            "aleph-bet", ("_", "|", *"אבגדהוזחטיכלמנסעפצקרשתםןךףץ"), "_", None, "|", "character"
        ),
        Language("he", "א-ת"),
        10,
    ),
    {word: " ".join(word) for word in ("שלום", "עולם", "אני", "רוצה", "מים", "בית", "לך")},
    (("שלום עולם", "שלום עולם"), ("אני רוצה מים.", "אני רוצה בית")),
    stride=8,
)
CHINESE = World(
    Conventions(
        Inventory("pinyin", ("_", *"wo3 ni3 hao3 shi4 xue2 sheng1 ta1".split()), "_", None),
        LANGUAGES["zh"],
    ),
    {
        "我": "wo3",
        "你": "ni3",
        "好": "hao3",
        "是": "shi4",
        "学": "xue2",
        "生": "sheng1",
        "他": "ta1",
        "她": "ta1",
    },
    (("你好。", "你 好"), ("我是学生", "我 是 你")),
)
OPEN = replace(
    HEBREW,
    conventions=replace(HEBREW.conventions, bin_ms=20),
    stride=4,
    unit="character",
)
MANY = World(
    Conventions(Inventory("many", ("_", *(f"t{n:03}" for n in range(249))), "_", None)),
    {f"{chr(97 + n // 26)}{chr(97 + n % 26)}": f"t{n:03} t{248 - n:03}" for n in range(100)},
    (("aa bb cc", "aa bb cc"), ("ab ba", "ab ba")),
)
ONE = World(
    Conventions(Inventory("one", ("_", "yes"), "_", None), bin_ms=50),
    {"yes": "yes"},
    (("yes", "yes"), ("yes yes", "yes yes")),
    stride=1,
)
