"""The lexicon as a prefix tree: words that begin alike share their first phonemes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cortext.text.lexicon import Lexicon
from cortext.text.phonemes import Inventory

ROOT = 0


@dataclass(slots=True)
class LexiconTree:
    """Node 0 is the root; every other node is one phoneme after its parent.

    Attributes:
        children: For each node, the child by token number.
        words: For each node, the words whose pronunciation ends there, with the log of its weight.
    """

    children: list[dict[int, int]] = field(default_factory=lambda: [{}])
    words: list[list[tuple[str, float]]] = field(default_factory=lambda: [[]])

    @classmethod
    def of(cls, lexicon: Lexicon, inventory: Inventory) -> LexiconTree:
        """The tree of all pronunciations of a lexicon in the token numbers of an inventory.

        Homophones share a node.
        """
        tree = cls()
        for word in lexicon:
            for phonemes, weight in zip(
                lexicon.pronunciations(word), lexicon.weights(word), strict=True
            ):
                node = ROOT
                for phoneme in phonemes:
                    node = tree._child(node, inventory.index[phoneme])
                tree.words[node].append((word, math.log(weight)))
        return tree

    def __len__(self) -> int:
        return len(self.children)

    def _child(self, node: int, token: int) -> int:
        child = self.children[node].get(token)
        if child is None:
            child = self.children[node][token] = len(self.children)
            self.children.append({})
            self.words.append([])
        return child
