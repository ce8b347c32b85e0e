"""Open vocabulary: sentences of characters, searched without a lexicon.

The language model's unit is the character: its words are the tokens of an inventory, the separator
among them, and nothing stands between these words. Here sentences of tokens become text:

    text:   the tokens joined, with a blank for the separator; separators at the edges count
            nothing, several in a row count as one
    words:  the tokens between separators; a word lasts from its first token to its last, and is as
            sure as its least sure token

In a language whose characters are words each, and without a separator, every token is a word.

Sentences of tokens that make the same text are one hypothesis, the best of them, so a list may be
shorter than `nbest`. `word_score` counts for every token; `acoustic_score` holds what it adds
beyond one for each word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from cortext.decoding.engine import Hook, NativeEngine, NativeStream
from cortext.decoding.nbest import Hypothesis, NBest, Partial, Word
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext.decoding.words import WordChanges
from cortext.errors import DecodingError, TextError
from cortext.text.inventory import Inventory
from cortext.text.language import Language
from cortext.text.pronunciation import pronouncer


def no_words(lm: LanguageModel) -> DecodingError:
    """Return the error for what scores words in a search that knows none."""
    return DecodingError(
        "a hook and a large model in fusion score words: the language model is of characters and"
        " knows none",
        where=lm.directory,
        fix="use a large model with llm.mode=rescore",
    )


class TokenText:
    """Text of sentences whose words, for the search, are the tokens of an inventory."""

    def __init__(self, inventory: Inventory, language: Language) -> None:
        self._inventory = inventory
        self._separator = inventory.separator
        self._language = language
        self._are_words = self._separator is None and language.unit == "character"

    def text(self, tokens: Iterable[str]) -> str:
        """Return the text of a sentence's tokens."""
        between = " " if self._are_words else ""
        joined = between.join([" " if token == self._separator else token for token in tokens])
        return " ".join(joined.split())

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text; raise DecodingError for one that cannot be spelt."""
        try:
            spelt = pronouncer(self._inventory, self._language)
            tokens = self._inventory.closed([spelt(word)[0] for word in text.split()])
        except TextError as error:
            raise DecodingError(error.what, where=f"sentence {text!r}", fix=error.fix) from None
        # The silence after the last word is no token of the text.
        return tokens[:-1] if tokens and tokens[-1] == self._separator else tokens

    def partial(self, stable: Sequence[str], tail: Sequence[str]) -> Partial:
        """Return the whole words of tokens that will not change any more, and all after them."""
        n_whole = len(stable)
        while n_whole and not self._are_words and stable[n_whole - 1] != self._separator:
            n_whole -= 1
        return Partial(self.text(stable[:n_whole]), self.text([*stable[n_whole:], *tail]))

    def hypothesis(self, of_tokens: Hypothesis, options: DecoderOptions) -> Hypothesis:
        """Return a hypothesis of tokens as one of words.

        Args:
            of_tokens: The hypothesis; its words are tokens.
            options: Options that it was scored with.
        """
        words = self._words(of_tokens.words)
        surplus = options.word_score * (len(of_tokens.words) - len(words)) / options.acoustic_scale
        return replace(
            of_tokens,
            text=self.text(word.word for word in of_tokens.words),
            words=words,
            acoustic_score=of_tokens.acoustic_score + surplus,
        )

    def nbest(self, of_tokens: NBest, options: DecoderOptions) -> NBest:
        """Return a list of sentences of tokens as one of texts, each of them once.

        Args:
            of_tokens: The list, best first.
            options: Options that it was scored with.
        """
        by_text: dict[str, Hypothesis] = {}
        for each in of_tokens:
            hypothesis = self.hypothesis(each, options)
            by_text.setdefault(hypothesis.text, hypothesis)
        return NBest(by_text.values(), of_tokens.degraded)

    def _words(self, tokens: Sequence[Word]) -> tuple[Word, ...]:
        if self._are_words:
            return tuple(tokens)
        runs = groupby(tokens, key=lambda token: token.word == self._separator)
        return tuple(_joined(list(run)) for is_separator, run in runs if not is_separator)


def _joined(tokens: Sequence[Word]) -> Word:
    sure = [token.confidence for token in tokens if token.confidence is not None]
    return Word(
        "".join([token.word for token in tokens]),
        tokens[0].start_ms,
        tokens[-1].end_ms,
        min(sure) if len(sure) == len(tokens) else None,
    )


class OpenVocabularyEngine:
    """A search engine over a language model of characters, with texts instead of tokens."""

    def __init__(self, engine: NativeEngine) -> None:
        self.lm = engine.lm
        self._engine = engine
        self._text = TokenText(engine.lm.inventory, engine.lm.language)

    def with_lm(self, lm: LanguageModel) -> OpenVocabularyEngine:
        """Return an engine of the same kind for another language model in memory."""
        return OpenVocabularyEngine(self._engine.with_lm(lm))

    def start(
        self,
        options: DecoderOptions,
        inventory: Inventory,
        words: WordChanges = WordChanges(),
        hook: Hook | None = None,
        every_frames: int = 1,
    ) -> OpenVocabularyStream:
        """Begin the search in a new utterance.

        Args:
            options: Options of the search.
            inventory: Tokens of the columns, in order.
            words: None: `WordChanges` refuses any for a language model of characters.
            hook: Refused unless None.
            every_frames: Not used.

        Raises:
            DecodingError: For a hook, which scores words.
        """
        if hook is not None:
            raise no_words(self.lm)
        search = self._engine.start(options, inventory.without_separator, words)
        return OpenVocabularyStream(search, self._text, options)

    def can_spell(self, word: str) -> bool:
        """Return whether a word can be part of a text."""
        try:
            return word.split() == [word] and bool(self._text.tokens(word))
        except DecodingError:
            return False

    def score(
        self,
        text: str,
        log_probs_PV: np.ndarray,
        options: DecoderOptions,
        inventory: Inventory,
        words: WordChanges = WordChanges(),
    ) -> Hypothesis:
        """Return the exact scores of a given sentence, with one separator between two words.

        Args:
            text: The sentence, its words separated by blanks.
            log_probs_PV: float32 [P, V], checked natural-log probabilities.
            options: Options of the search.
            inventory: Tokens of the columns, in order.
            words: None, as in `start`.

        Raises:
            DecodingError: For a character without a token or a sentence too long for the frames.
        """
        tokens = " ".join(self._text.tokens(text))
        try:
            of_tokens = self._engine.score(
                tokens, log_probs_PV, options, inventory.without_separator, words
            )
        except DecodingError as error:
            problem = error.what.replace(repr(tokens), repr(text))
            raise DecodingError(problem, where=error.where, fix=error.fix) from None
        return self._text.hypothesis(of_tokens, options)


class OpenVocabularyStream:
    """The search through one utterance, with texts instead of tokens."""

    def __init__(self, search: NativeStream, text: TokenText, options: DecoderOptions) -> None:
        self._search = search
        self._text = text
        self._options = options

    def advance(self, log_probs_PV: np.ndarray) -> None:
        """Take in frames."""
        self._search.advance(log_probs_PV)

    def partial(self) -> Partial:
        """Return the words that will not change any more, and the current guess after them."""
        of_tokens = self._search.partial()
        return self._text.partial(of_tokens.stable.split(), of_tokens.tail.split())

    def set_options(self, options: DecoderOptions) -> None:
        """Change the options from the next frame on."""
        self._search.set_options(options)
        self._options = options

    def finish(self) -> NBest:
        """Return the n-best list."""
        return self._text.nbest(self._search.finish(), self._options)
