"""A casing model with random weights, which makes every kind of mistake."""

from __future__ import annotations

import torch

from cortext.text.language import EN, Language
from cortext_live.casing.model import CasingCard, CasingNetwork, ModelCaser


def random_caser(language: Language = EN, seed: int = 0) -> ModelCaser:
    card = CasingCard(
        language,
        ("i", "see", "you"),
        {"mcgill": "McGill"},
        n_pieces=64,
        width=8,
        units=4,
        rules=language.is_benchmark,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = CasingNetwork(card)
        for weight in network.parameters():
            weight.data.normal_(std=2.0)
    return ModelCaser(card, network)
