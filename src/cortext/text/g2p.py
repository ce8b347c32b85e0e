"""Graphemes to phonemes for words that the dictionary lacks."""

from __future__ import annotations

_SOUNDS = dict(
    pair.split(":")
    for pair in (
        "a:AE b:B c:K d:D e:EH f:F g:G h:HH i:IH j:JH k:K l:L m:M n:N o:AA p:P q:K r:R s:S t:T u:AH v:V w:W x:K_S y:IY z:Z"
    ).split()
)


def predict(word: str) -> tuple[str, ...]:
    """The most probable pronunciation of a word of letters a-z."""
    return tuple(phoneme for letter in word if letter in _SOUNDS for phoneme in _SOUNDS[letter].split("_"))
