"""The published analyses of participant T15, made up in the published form."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding.fake import fake_log_probs
from cortext.text import lexicon_for, normalize
from cortext.text.inventory import BLANK, LM, SIL, Inventory

SMALL = ("I am good", "Are you thirsty?", "Bring my glasses here", "My family is here")
OPEN = (
    "I'd feel better if you could clean my glasses.",
    "They can pretty much get everybody there.",
    "What do you think about the weather?",
    "We want to go home now.",
)


def copy_task(
    small: Sequence[str] = SMALL,
    large: Sequence[str] = OPEN,
    order: Inventory = LM,
    noise: float = 1.0,
    wrong: Sequence[int] = (1, 5),
) -> dict[str, Any]:
    """Return the content of `t15_copyTask.pkl` for made-up trials.

    Args:
        small: Prompts said with 50 words, all on day 25.
        large: Prompts said with 125,000 words, on days 27 and 32 in turns.
        order: Order of the tokens in the logits.
        noise: Noise of the logits; from 2 on it does harm.
        wrong: Numbers of the trials whose published sentence lacks the first word.
    """
    cues = [*small, *large]
    lexicon = lexicon_for({word for cue in cues for word in normalize(cue).split()})
    logits = [fake_log_probs(cue, noise, number, order, lexicon) for number, cue in enumerate(cues)]
    decoded = [
        " ".join(normalize(cue).split()[number in wrong :]) for number, cue in enumerate(cues)
    ]

    def phonemes(sentence: str) -> list[str]:
        words = normalize(sentence).split()
        return [one for word in words for one in (*lexicon.pronunciations(word)[0], SIL)]

    return {
        "cue_sentence": cues,
        "cue_sentence_phonemes": [phonemes(cue) for cue in cues],
        "decoded_logits": logits,
        "decoded_phonemes_raw": [raw_phonemes(one, order) for one in logits],
        "decoded_sentence": decoded,
        "decoded_sentence_phonemes": [phonemes(sentence) for sentence in decoded],
        "post_implant_day": [25] * len(small) + [(27, 32)[n % 2] for n in range(len(large))],
        "vocab_size": np.array([50] * len(small) + [125_000] * len(large)),
    }


def raw_phonemes(logits_PV: np.ndarray, order: Inventory) -> list[str]:
    """Return the best tokens as the release writes them: without blanks, then without repeats."""
    found: list[str] = []
    for token in logits_PV.argmax(axis=1):
        symbol = order.symbols[token]
        if symbol != BLANK and found[-1:] != [symbol]:
            found.append(symbol)
    return found


def personal_use() -> dict[str, Any]:
    """Return the content of `t15_personalUse.pkl` for a few made-up sentences of four days."""
    ratings = "correct|mostly correct|one word wrong|incorrect|blank trial|response timeout"
    rated = [*ratings.split("|"), "no user rating", "correct", "correct", "incorrect"]
    return {
        "trialized_info": {
            "post_implant_day": [46, 46, 46, 46, 46, 46, 46, 47, 47, 49],
            "correctness_rating": rated,
            "wpm": [30.5, 20.0, float("nan"), 40.0, *[float("nan")] * 3, 32.0, 28.0, float("nan")],
        },
        "total_use_time": {46: 5400.0, 47: 1800, 48: 0, 49: 600.0},
        "total_trial_count": {46: 9, 47: 2, 48: 0, 49: 1},
    }


def write_pickle(path: Path, content: Any) -> Path:
    """Write the content as the release writes its analyses."""
    path.write_bytes(pickle.dumps(content))
    return path
