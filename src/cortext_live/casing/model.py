"""Truecasing and punctuation restoration: a small network chooses each word's capitals and mark.

A word is read as an embedding of itself, where it is known, and the mean embedding of its pieces
(character n-grams). A bidirectional GRU (Cho et al., 2014) reads the words of a sentence; a linear
layer chooses among kinds of capitals and among marks. For English, the choices of the rules are an
input, too, and an untrained network repeats them: it learns where the rules are wrong.

N words of a batch, B sentences, T words of the longest of them, L pieces of all words, D embedding,
H hidden units of both directions, K kinds of capitals, M marks, C = K + M choices, R choices of the
rules.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from cortext.errors import CortextError, TextError
from cortext.files import check_file, parse_json_object
from cortext.models.storage import check_finite, read_tensors, write_tensors
from cortext.text.language import Language
from cortext_live.casing.rules import case_english
from cortext_live.casing.writing import (
    ENDS,
    MARKS,
    Shown,
    capital,
    is_spelling,
    joined,
    named,
    upper,
)

FORMAT_VERSION = 1
KINDS = ("lower", "capital", "upper", "mixed")
"""Kinds of capitals of a word: none, the first letter, all letters, or a spelling of its own."""
MOST_BYTES = 8 << 20
"""Largest file that is read; training writes 2 MB."""
MOST_KNOWN = 20_000
MOST_WIDTH = 512
LONGEST_WORD = 40
"""Letters of a word that are read."""
AT_ONCE = 2048
"""Words of a sentence that are read together; decoded sentences have far fewer."""
_TRUST = 4.0
"""Log-odds that an untrained network gives to what the rules would do."""
_CARD = "cortext_casing"
_AGAIN = "train it anew with `cortext lm train-case`"
_POSSESSIVE = "'s"


@dataclass(frozen=True)
class CasingCard:
    """A casing model without its weights.

    Attributes:
        language: The language whose decoded text it reads.
        known: Words with an embedding of their own, in the order of the rows.
        spellings: Spellings of words with capitals in the middle, such as `mcdonald: McDonald`.
        n_pieces: Rows of the embedding of pieces; pieces share them by a hash.
        width: D.
        units: Hidden units of a direction, H / 2.
        rules: Whether the rules of English are an input.
        facts: How it was trained, and its measured errors.
    """

    language: Language
    known: tuple[str, ...]
    spellings: Mapping[str, str]
    n_pieces: int = 4096
    width: int = 64
    units: int = 64
    rules: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Rows of the known words; all others have row 0."""
        return {word: row for row, word in enumerate(self.known, start=1)}

    def to_json(self) -> str:
        """Return the card as the file has it."""
        return json.dumps(
            {
                "format_version": FORMAT_VERSION,
                "language": self.language.to_json(),
                "known": " ".join(self.known),
                "spellings": dict(self.spellings),
                "n_pieces": self.n_pieces,
                "width": self.width,
                "units": self.units,
                "rules": self.rules,
                "facts": dict(self.facts),
            },
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> CasingCard:
        """Return the card of a text. Raises ValueError or CortextError for other texts."""
        card = parse_json_object(text, finite=True)
        version = card.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise ValueError(f"its format is {version!r:.20}; this cortext reads {FORMAT_VERSION}")
        known, spellings = card.get("known"), card.get("spellings")
        if not isinstance(known, str) or not isinstance(spellings, dict):
            raise ValueError("its card lacks words or spellings")
        words = tuple(known.split())
        if len(words) > MOST_KNOWN or len(set(words)) != len(words) or len(spellings) > MOST_KNOWN:
            raise ValueError("its card has too many words, or one of them twice")
        for word, spelling in spellings.items():
            if not isinstance(spelling, str) or not is_spelling(spelling, word):
                raise ValueError(f"{spelling!r:.40} is no spelling of {word[:40]!r}")
        for name in ("n_pieces", "width", "units"):
            most = 1 << 16 if name == "n_pieces" else MOST_WIDTH
            if type(card.get(name)) is not int or not 1 <= card[name] <= most:
                raise ValueError(f"{name} is {card.get(name)!r:.20}; 1 to {most} are possible")
        if type(card.get("rules")) is not bool or not isinstance(card.get("facts"), dict):
            raise ValueError("its card lacks rules or facts")
        language = Language.from_json(card.pop("language", None))
        if set(card) != {"known", "spellings", "n_pieces", "width", "units", "rules", "facts"}:
            raise ValueError("its card has fields that it should not have")
        return cls(**card | {"language": language, "known": words})


class CasingNetwork(nn.Module):
    """The network; see the head of this module."""

    def __init__(self, card: CasingCard) -> None:
        super().__init__()
        self.known = nn.Embedding(len(card.known) + 1, card.width, padding_idx=0)
        self.pieces = nn.EmbeddingBag(card.n_pieces, card.width, mode="mean")
        n_choices = len(KINDS) + len(MARKS)
        self.hints = nn.Linear(n_choices, card.width) if card.rules else None
        self.prior = nn.Linear(n_choices, n_choices, bias=False) if card.rules else None
        self.drop = nn.Dropout(0.3)
        self.gru = nn.GRU(card.width, card.units, batch_first=True, bidirectional=True)
        self.choice = nn.Linear(2 * card.units + card.width, n_choices)
        with torch.no_grad():
            if self.prior is not None:
                self.prior.weight.copy_(_TRUST * torch.eye(n_choices))

    def forward(self, batch: SentenceBatch) -> tuple[Tensor, Tensor]:
        """Return logits of kinds [N, K] and of marks [N, M]."""
        x_ND = self.drop(self.known(batch.known_N) + self.pieces(batch.pieces_L, batch.offsets_N))
        if self.hints is not None:
            x_ND = x_ND + self.hints(batch.hints_NR)
        packed = pack_sequence(x_ND.split(batch.lengths), enforce_sorted=False)
        y_BTH, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        y_NH = torch.cat([y_BTH[b, :n] for b, n in enumerate(batch.lengths)])
        logits_NC = self.choice(self.drop(torch.cat([y_NH, x_ND], dim=1)))
        if self.prior is not None:
            logits_NC = logits_NC + self.prior(batch.hints_NR)
        return logits_NC[:, : len(KINDS)], logits_NC[:, len(KINDS) :]


@dataclass(frozen=True)
class SentenceBatch:
    """Sentences as the network reads them.

    Attributes:
        known_N: Row of each word, int64.
        pieces_L: Rows of the pieces of all words, int64.
        offsets_N: Place of each word's first piece, int64.
        hints_NR: What the rules would do, float32: kind and mark, one-hot.
        lengths: Number of words of each sentence; none is empty.
    """

    known_N: Tensor
    pieces_L: Tensor
    offsets_N: Tensor
    hints_NR: Tensor
    lengths: list[int]


class Encoder:
    """Turns words into batches.

    Args:
        card: The model.
        keeps: Keep the computed values of words and sentences: for training. What people say live
            does not stay in memory.
    """

    def __init__(self, card: CasingCard, keeps: bool = False) -> None:
        self._card = card
        self._most_kept = MOST_KNOWN if keeps else 0
        self._pieces: dict[str, list[int]] = {}
        self._hints: dict[tuple[str, ...], list[tuple[int, int]]] = {}

    def hints(self, words: Sequence[str]) -> list[tuple[int, int]]:
        """Return what the rules would do with each word: numbers of its kind and of its mark."""
        if not self._card.rules:
            return [(0, 0)] * len(words)
        key = tuple(words)
        known = self._hints.get(key)
        if known is None:
            known = [
                (KINDS.index(kind_of(word, shown.spelling)), MARKS.index(shown.mark))
                for word, shown in zip(words, case_english(words), strict=True)
            ]
            if len(self._hints) < self._most_kept:
                self._hints[key] = known
        return known

    def batch(
        self,
        sentences: Sequence[Sequence[str]],
        hints: Sequence[Sequence[tuple[int, int]]] | None = None,
    ) -> SentenceBatch:
        """Return a batch of sentences, each with at least one word.

        Args:
            sentences: The words.
            hints: What `hints` returns of each, where it is known already.
        """
        hints = hints or [self.hints(words) for words in sentences]
        row_of = self._card.row_of
        words = [word for sentence in sentences for word in sentence]
        pieces = [self._rows(word) for word in words]
        ends = torch.tensor([0, *map(len, pieces)]).cumsum(0)
        kinds_N2 = torch.tensor([hint for each in hints for hint in each])
        return SentenceBatch(
            torch.tensor([row_of.get(word, 0) for word in words]),
            torch.tensor([row for each in pieces for row in each]),
            ends[:-1],
            torch.cat(
                [one_hot(kinds_N2[:, 0], len(KINDS)), one_hot(kinds_N2[:, 1], len(MARKS))], dim=1
            ).float(),
            [len(sentence) for sentence in sentences],
        )

    def _rows(self, word: str) -> list[int]:
        rows = self._pieces.get(word)
        if rows is None:
            text = f"<{word[:LONGEST_WORD]}>"
            pieces = {text[at : at + n] for n in (2, 3, 4) for at in range(len(text) - n + 1)}
            rows = [zlib.crc32(piece.encode()) % self._card.n_pieces for piece in sorted(pieces)]
            if len(self._pieces) < self._most_kept:
                self._pieces[word] = rows
        return rows


def kind_of(word: str, spelling: str) -> str:
    """Return the kind of capitals that a word has in a spelling."""
    if spelling == word:
        return "lower"
    if spelling == capital(word):
        return "capital"
    return "upper" if spelling == _in_capitals(word) else "mixed"


def _in_capitals(word: str) -> str:
    """Return a word in capitals, but for the end of a possessive: `NASA's`."""
    stem = word.removesuffix(_POSSESSIVE)
    return upper(stem) + word[len(stem) :]


class ModelCaser:
    """A trained model as a `Caser`.

    Args:
        card: What it is.
        network: Its weights.
    """

    def __init__(self, card: CasingCard, network: CasingNetwork) -> None:
        self.card = card
        self.network = network.eval().requires_grad_(False)
        self._encoder = Encoder(card)
        self._opening = {"?": "¿", "!": "¡"} if card.language.name == "es" else {}

    @property
    def language(self) -> str:
        """See `Caser`."""
        return self.card.language.name

    def show(self, texts: Sequence[str], names: Mapping[str, str] = {}) -> list[str]:
        """See `Caser`."""
        sentences = [text.split() for text in texts]
        return [joined(shown, self._opening) for shown in self.shown(sentences, names)]

    def shown(
        self, sentences: Sequence[Sequence[str]], names: Mapping[str, str] = {}
    ) -> list[list[Shown]]:
        """Return the words of sentences as they are shown.

        Args:
            sentences: Words of each sentence.
            names: See `Caser.show`.
        """
        # A sentence longer than any that people speak is read in parts, to bound the memory.
        parts = [
            words[at : at + AT_ONCE] for words in sentences for at in range(0, len(words), AT_ONCE)
        ]
        if not parts:
            return [[] for _ in sentences]
        batch = self._encoder.batch(parts)
        with torch.inference_mode():
            kind_NK, mark_NM = self.network(batch)
        kinds = kind_NK.argmax(dim=1).tolist()
        marks = mark_NM.argmax(dim=1).tolist()
        ends = [MARKS.index(mark) for mark in ENDS]
        final = mark_NM[:, ends].argmax(dim=1).tolist()
        sentences_shown: list[list[Shown]] = []
        at = 0
        for words in sentences:
            shown: list[Shown] = []
            begins = True
            for place, word in enumerate(words):
                is_last = place == len(words) - 1
                mark = ENDS[final[at]] if is_last else MARKS[marks[at]]
                spelling = named(word, names) or self._spelling(word, KINDS[kinds[at]])
                shown.append(Shown(capital(spelling) if begins else spelling, mark))
                begins = mark in ENDS
                at += 1
            sentences_shown.append(shown)
        return sentences_shown

    def _spelling(self, word: str, kind: str) -> str:
        if kind == "lower":
            return word
        if kind == "upper":
            return _in_capitals(word)
        spelt = named(word, self.card.spellings) if kind == "mixed" else None
        return spelt or capital(word)


def write_caser(path: Path, caser: ModelCaser) -> None:
    """Write a model as one file, which replaces another as a whole."""
    tensors = {name: tensor.half() for name, tensor in caser.network.state_dict().items()}
    write_tensors(path, tensors, {_CARD: caser.card.to_json()})


def read_caser(path: str | Path) -> ModelCaser:
    """Return the model of a file of `cortext lm train-case`.

    Raises:
        TextError: There is none, or it is damaged.
    """
    path = Path(path)
    try:
        check_file(path, MOST_BYTES)
        tensors, metadata, checksum = read_tensors(path, "the casing model")
        if checksum is None or _CARD not in metadata:
            raise ValueError("it is no casing model")
        card = CasingCard.from_json(metadata[_CARD])
        with torch.device("meta"):
            network = CasingNetwork(card)
        shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
        for name, tensor in tensors.items():
            if shapes.get(name) != tensor.shape:
                raise ValueError(f"tensor {name[:40]!r} is none of its own, or of another shape")
        if set(shapes) - set(tensors):
            raise ValueError(f"tensor {min(set(shapes) - set(tensors))!r} is missing")
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
        check_finite(tensors, path)
        network.load_state_dict(tensors, assign=True)
    except CortextError as error:
        problem = error.what
    except OSError as error:
        problem = f"the casing model cannot be read: {error.strerror}"
    except (ValueError, TypeError) as error:
        problem = f"the casing model cannot be read: {error}"
    else:
        return ModelCaser(card, network)
    raise TextError(problem, where=path, fix=_AGAIN)
