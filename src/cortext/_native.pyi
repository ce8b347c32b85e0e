"""The compiled part of cortext; its sources are in native/.

Any argument may be given to any of it: it is used or refused with an exception. A subinterpreter
cannot import it.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

class State:
    """What of a sentence's words the following ones still depend on.

    Equal states score all continuations alike.
    """

    @property
    def length(self) -> int:
        """Number of words that it holds."""

    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

class NGram:
    """A back-off n-gram model, read-only: any number of threads may use one.

    Scores are natural logs.

    Unknown words score as `<unk>`. A model of which a process holds the binary file open must be
    replaced by renaming a new file over it, as `write_binary` does, never by writing into it.
    """

    @staticmethod
    def open(path: str | PathLike[str]) -> NGram:
        """Open a KenLM binary file of any type, or ARPA text (`.arpa`, `.arpa.gz`), order 1 to 6.

        A binary file is mapped into memory.

        A damaged file may give wrong scores where the damage is not in its structure, but it never
        ends the process.

        Raises:
            LanguageModelError: With the line for ARPA text.
        """

    @property
    def path(self) -> str: ...
    @property
    def order(self) -> int: ...
    @property
    def counts(self) -> tuple[int, ...]:
        """N-grams of each order."""

    @property
    def kind(self) -> str:
        """Type of the file.

        One of `probing`, `rest_probing`, `trie`, `quant_trie`, `array_trie`, `quant_array_trie` and
        `arpa`.
        """

    @property
    def bytes(self) -> int:
        """Size of the file."""

    def words(self) -> list[str]:
        """All words by their number, `<unk>` first.

        Raises LanguageModelError if the file has no strings.
        """

    def __contains__(self, word: str, /) -> bool:
        """Whether the model knows the word; false for `<unk>`, `<s>` and `</s>`."""

    def begin(self) -> State:
        """The state at the start of a sentence."""

    def empty(self) -> State:
        """The state without any context."""

    def score(self, state: State, word: str) -> tuple[float, State]:
        """Log-probability of `word` after `state`, and the state after it."""

    def end(self, state: State) -> float:
        """Log-probability that the sentence ends after `state`."""

    def unigram(self, word: str) -> float:
        """Log-probability of a word without any context."""

    def sentence(self, text: str) -> float:
        """Log-probability of a sentence, words separated by blanks, and its end."""

    def score_text(self, sentences: Sequence[str]) -> tuple[int, int, int, float, float]:
        """The fields of `TextScore`.

        Sentences, words, unknown words, log-probability, and that of the known words.
        """

def write_binary(
    arpa: str | PathLike[str],
    out: str | PathLike[str],
    type: str = "trie",
    prob_bits: int = 8,
    backoff_bits: int = 8,
    pointer_bits: int = 22,
    memory_bytes: int = 1 << 30,
    temporary: str | PathLike[str] = "",
) -> None:
    """Write the ARPA file `arpa` as the KenLM binary file `out`, whole or not at all.

    Args:
        type: `trie` (small), `probing` (fast) or `rest_probing`.
        prob_bits: Quantise a trie's probabilities to so many bits (1 to 25), and its back-offs to
            `backoff_bits` (2 to 25); 0 for both: exact.
        pointer_bits: Compress a trie's pointers by up to so many bits; 0: not.
        memory_bytes: Memory for sorting; the model itself comes on top.
        temporary: Directory for temporary files; by default that of `out`.

    Raises:
        LanguageModelError: For what is wrong with the ARPA file, an unknown type, and a full disk.
    """

class Options:
    """Settings of a search: an attribute for each option that `native/options.hpp` lists.

    `cortext.decoding.DecoderOptions` says what they mean, and checks them before they come here.
    """

    BOUNDS: Mapping[str, tuple[float, float]]
    """Lowest and highest value of each option."""

    offsets: list[float]
    """Subtracted from the log-probability of each token, in the engine's order."""

    def __getattr__(self, name: str) -> float: ...
    def __setattr__(self, name: str, value: object) -> None: ...

class Model:
    """An n-gram and a lexicon's tree; read-only, for any number of threads."""

    @staticmethod
    def make(
        ngram: NGram,
        words: Sequence[str],
        codes: Sequence[str],
        weights: Sequence[tuple[int, int, float]],
        n_phonemes: int,
        has_sil: bool = True,
    ) -> Model:
        """A model of words with their pronunciations, as `cortext.text.lexicon.encode` writes them.

        Args:
            weights: Word number, pronunciation number and log weight, where that is not 0.
            n_phonemes: Number of spoken tokens, at most 250.
            has_sil: Whether a silence or boundary stands between words.
        """

    def changed(
        self,
        added: Sequence[tuple[str, str, list[float]]],
        removed: Sequence[str],
        bonuses: Mapping[str, float],
    ) -> Model:
        """A model with other words that shares the rest."""

    def __contains__(self, word: str) -> bool: ...
    def score(
        self, words: Sequence[str], log_probs: np.ndarray, columns: Sequence[int], options: Options
    ) -> Result:
        """The exact scores of one sentence; an empty result if it does not fit into the frames."""

class Stream:
    """The state of the search within one utterance.

    Raises:
        DecodingError: When a second thread uses it, and for options out of the bounds of
            `DecoderOptions`.
    """

    def __init__(
        self,
        model: Model,
        options: Options,
        columns: Sequence[int],
        second: NGram | None,
        has_hook: bool,
    ) -> None: ...
    def advance(self, log_probs: np.ndarray) -> None:
        """Take in checked frames, float32 [P, V]."""

    def set_options(self, options: Options) -> None:
        """Change the options from the next frame on."""

    def partial(self) -> tuple[str, str]:
        """The stable words, and those after them."""

    def live(
        self,
    ) -> tuple[list[int], list[int], list[tuple[str, ...]], list[float], list[float], list[float]]:
        """The columns of `cortext.decoding.engine.LiveBatch`."""

    def add_scores(self, ids: Sequence[int], scores: np.ndarray) -> None:
        """Add float32 [N] scores to hypotheses."""

    def finish(self) -> Result:
        """The best sentences."""

class Result:
    """The hypotheses of an utterance."""

    def __len__(self) -> int: ...
    def text(self, number: int) -> str: ...
    def scores(self, number: int) -> tuple[float, float, float, float, float]:
        """Score, and the parts of it.

        The parts are those of the n-gram (unscaled), the silences, the bonuses and a hook.
        """

    def words(self, number: int) -> list[tuple[str, int, int, float]]:
        """Word, first frame, end frame and confidence."""

def score_sentences(
    sentences: Sequence[Sequence[Sequence[tuple[Sequence[int], float]]]],
    scores_PV: np.ndarray,
    *,
    acoustic_scale: float,
    sil_cost: float,
    logadd: bool,
    sil_required: bool,
    blank: int,
    sil: int,
) -> list[tuple[float, int, list[tuple[int, int]]]]:
    """Score sentences, and find their boundaries without SIL and the spans of their words.

    The definition is in `cortext.decoding.nbest`.

    Args:
        sentences: Of each the words, of each of these the pronunciations: token numbers and the log
            of the weight.
        scores_PV: float64 [P, V], what each token adds to a path in a frame: scaled, with
            penalties and priors; -inf where a frame is passed over.
    """

# The recurrence of a GRU layer in training; bfloat16 as its bits. What is written to comes after
# what is read. Any argument that is not of the shape and type that its name says, or not
# contiguous, is a TypeError or a ValueError.
recurrence_unit_multiple: int

def can_run_recurrence() -> bool: ...
def recurrence_forward(
    starts: Any,
    input_NG: Any,
    h0_BD: Any,
    w_hh_GD: Any,
    b_hh_G: Any,
    h_ND: Any,
    h_before_ND: Any,
    gates_N4D: Any,
    n_threads: int,
) -> None: ...
def recurrence_backward(
    starts: Any,
    d_h_ND: Any,
    h0_BD: Any,
    w_hh_GD: Any,
    h_ND: Any,
    gates_N4D: Any,
    d_input_NG: Any,
    d_recurrent_NG: Any,
    d_h0_BD: Any,
    d_b_hh_G: Any,
    n_threads: int,
) -> None: ...
def vector_lanes() -> int:
    """Return the number of floats that a step computes with at once: 16, 8 or 4."""

def use_vector_lanes(lanes: int) -> bool:
    """Let steps compute with vectors of 16, 8 or 4 floats, to try what other processors do.

    Returns:
        False, and nothing changes, if the processor has no such vectors.
    """

class StepGRU:
    """A stack of GRU layers for one step of one trial at a time, on any processor.

    Attributes:
        layers: Of each layer w_ih float32 [3 D, I], w_hh [3 D, D], b_ih [3 D] and b_hh [3 D], gates
            in torch's order; they are copied.
        kept_as: fp32, bf16 or int8: how the matrices are kept; products and sums are float32 in any
            case.
    """

    def __init__(self, layers: Sequence[tuple[np.ndarray, ...]], kept_as: str) -> None: ...
    def set_prefetch(self, by_hints: bool) -> None:
        """Let weights be fetched by hints, or by the processor alone; results are the same."""

    def step(self, x: Any, state_LD: Any, next_state_LD: Any) -> None:
        """Step from the input float32 [I] and the states [L, D] to the next states.

        The last row of the next states is the output.

        NaN in the input makes all of it NaN. What depends on the states and on what comes before it
        is kept, and a step from the same numbers goes on from there. Not for two threads at once.
        """

class StepEmbedding:
    """The embedding of one patch: norm, linear map, norm.

    All arrays are float32. The matrix is copied.

    Attributes:
        patch_norm: Weight and bias [I] of the first norm.
        weight: The matrix [D, I].
        bias: [D], added to its products.
        norm: Weight and bias [D] of the last norm.
        epsilon: Number that norms add to a variance.
        kept_as: fp32, bf16 or int8: how the matrix is kept; all else is float32 in any case.
    """

    def __init__(
        self,
        patch_norm: tuple[np.ndarray, np.ndarray],
        weight: np.ndarray,
        bias: np.ndarray,
        norm: tuple[np.ndarray, np.ndarray],
        epsilon: float,
        kept_as: str,
    ) -> None: ...
    def set_prefetch(self, by_hints: bool) -> None:
        """Let weights be fetched by hints, or by the processor alone; results are the same.

        Not while another thread multiplies.
        """

    def apply(self, x: Any, y: Any) -> None:
        """Write the embedding of a patch x float32 [I] to y [D]."""

class StepTransformer:
    """A stack of causal Transformer blocks for one frame of one trial at a time.

    All arrays are float32. The matrices are copied.

    Attributes:
        blocks: Of each layer the weight and bias [D] of the norm before attention, the matrix
            [3 I, D] of queries, keys and values, the bias of each distance from 0 frames on (all
            further distances have the last), the matrix [D, I] and bias [D] after attention, and of
            the feed-forward network the weight and bias [D] of its norm, the matrix [F, D] and bias
            [F], and the matrix [D, F] and bias [D].
        norm: Weight and bias [D] of the last norm.
        epsilon: Number that norms add to a variance.
        n_heads: Heads of an attention.
        kept_as: fp32, bf16 or int8: how the matrices are kept; all else is float32 in any case.
    """

    def __init__(
        self,
        blocks: Sequence[tuple[np.ndarray, ...]],
        norm: tuple[np.ndarray, np.ndarray],
        epsilon: float,
        n_heads: int,
        kept_as: str,
    ) -> None: ...
    def set_prefetch(self, by_hints: bool) -> None:
        """Let weights be fetched by hints, or by the processor alone; results are the same.

        Not while another thread multiplies.
        """

    def step(self, x: Any, keys_LRI: Any, values_LRI: Any, row: int, n_before: int, y: Any) -> None:
        """Run a frame x float32 [D]; write y [D].

        The frame sees itself and the `n_before` frames whose keys and values [L, rows, I] lie in
        the rows before `row`. Its own are written to `row`.
        """

class StepLinear:
    """A linear map of one vector at a time.

    Weight float32 [outputs, inputs] and bias [outputs] are copied.
    """

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None, kept_as: str) -> None: ...
    def set_prefetch(self, by_hints: bool) -> None:
        """Let weights be fetched by hints, or by the processor alone; results are the same.

        Not while another thread multiplies.
        """

    def apply(self, x: Any, y: Any) -> None:
        """Write the map of x float32 [inputs] to y [outputs]."""
