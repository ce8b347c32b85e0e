"""Word pieces by byte-pair encoding (Sennrich et al., ACL 2016).

The tokenizers are transformers' fast ones. Every word is cut by itself, and its first piece begins
with a mark for the blank before it. So a word that is appended to a text appends tokens and changes
none. And the tokens that can follow a finished word are known: those with the mark, and the end of
the sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

from cortext.extras import need

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
MARK = "▁"
LETTERS = (MARK, *ascii_lowercase, "'", "-")
"""Characters that spell every word."""


def train_pieces(words: Mapping[str, int], size: int, window: int) -> Any:
    """Return a tokenizer (`PreTrainedTokenizerFast`) trained on words and their counts.

    Text is lower-cased, and only letters a-z, apostrophes, hyphens and blanks are kept, so that
    nothing is unknown. Encoded text begins with `<s>` unless special tokens are left out.

    Args:
        words: Number of times that each word occurs.
        size: Most pieces.
        window: Most tokens that the model takes.
    """
    need("transformers", "llm")
    tokenizers = need("tokenizers", "llm")
    from transformers import PreTrainedTokenizerFast

    normalizers, pre_tokenizers = tokenizers.normalizers, tokenizers.pre_tokenizers
    pieces = tokenizers.Tokenizer(tokenizers.models.BPE())
    pieces.normalizer = normalizers.Sequence(
        [
            normalizers.Lowercase(),
            normalizers.Replace(tokenizers.Regex("[^a-z' -]"), ""),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )
    pieces.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=MARK, prepend_scheme="always", split=True
    )
    pieces.decoder = tokenizers.decoders.Metaspace(
        replacement=MARK, prepend_scheme="always", split=True
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        initial_alphabet=list(LETTERS),
        special_tokens=[BOS, EOS, PAD],
        show_progress=False,
    )
    pieces.train_from_iterator(_repeated(words), trainer)
    pieces.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, pieces.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=window,
    )


def _repeated(words: Mapping[str, int]) -> Iterable[str]:
    """Yield lines that hold each word as often as it occurs, at most 1000 times.

    The bound takes no piece from the most frequent words.
    """
    for word, count in words.items():
        yield " ".join([word] * min(count, 1000))


def encode(sentences: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Return the tokens of normalised sentences, without `<s>` and `</s>`.

    Each different word is cut once.
    """
    words = list(Counter(word for sentence in sentences for word in sentence.split()))
    cut = (
        dict(zip(words, tokenizer(words, add_special_tokens=False)["input_ids"], strict=True))
        if words
        else {}
    )
    return [[token for word in sentence.split() for token in cut[word]] for sentence in sentences]


def starts(tokenizer: Any) -> list[int]:
    """Return the numbers of the pieces that begin a word, sorted."""
    special = set(tokenizer.all_special_ids)
    return sorted(
        number
        for piece, number in tokenizer.get_vocab().items()
        if piece.startswith(MARK) and number not in special
    )
