"""The compiled part of cortext; its sources are in native/."""

from collections.abc import Sequence

class State:
    """What of a sentence's words the following ones still depend on; equal states score all continuations alike."""

    @property
    def length(self) -> int:
        """Number of words that it holds."""

    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...

class NGram:
    """A back-off n-gram model, read-only: any number of threads may use one. Scores are natural logs.

    Unknown words score as `<unk>`. A model of which a process holds the binary file open must be replaced by renaming a
    new file over it, as `write_binary` does, never by writing into it.
    """

    @staticmethod
    def open(path: str) -> NGram:
        """Open a KenLM binary file of any type (mapped into memory) or ARPA text (`.arpa`, `.arpa.gz`), order 2 to 6.

        Raises LanguageModelError, with the line for ARPA text. A damaged file may give wrong scores where the damage is
        not in its structure, but it never ends the process.
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
        """`probing`, `rest_probing`, `trie`, `quant_trie`, `array_trie`, `quant_array_trie` or `arpa`."""

    @property
    def bytes(self) -> int:
        """Size of the file."""

    def words(self) -> list[str]:
        """All words by their number, `<unk>` first; raises LanguageModelError if the file has no strings."""

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
        """The fields of `TextScore`: sentences, words, unknown words, log-probability, and without the unknown words."""

def write_binary(
    arpa: str,
    out: str,
    type: str = "trie",
    prob_bits: int = 8,
    backoff_bits: int = 8,
    pointer_bits: int = 22,
    memory_bytes: int = 1 << 30,
    temporary: str = "",
) -> None:
    """Write the ARPA file `arpa` as a KenLM binary file, which appears as `out` when it is complete.

    type:         `trie` (small), `probing` (fast) or `rest_probing`
    prob_bits:    quantise a trie's probabilities to so many bits (1 to 25), and its back-offs to `backoff_bits` (2 to
                  25); 0 for both: exact
    pointer_bits: compress a trie's pointers by up to so many bits; 0: not
    memory_bytes: memory for sorting; the model itself comes on top
    temporary:    directory for temporary files; by default that of `out`

    Raises LanguageModelError for what is wrong with the ARPA file, an unknown type, and a full disk.
    """
