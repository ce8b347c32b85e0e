"""The kinds of messages to the pages: who gets each, and what a page gets that connects later.

A message of a kind that is not in `KINDS` cannot be made. Unless its row says otherwise, only pages
with a token get a kind, only these get a field of it, and a page that connects later gets nothing
of it. Tests compare the table with the page's scripts and with docs/reference/web-socket.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Later = Literal["nothing", "the latest", "its own"]


@dataclass(frozen=True)
class Kind:
    """One kind of messages.

    Attributes:
        strangers: Fields that a page without a token (`--open-view`) gets. Without any it does not
            get the kind at all.
        emptied: Lists among these fields that it gets empty, because they hold the past.
        later: What a page gets that connects later: the latest message, or one of its own, which is
            made then; see `DecodingThread.subscribe`.
        only_latest: Whether a message replaces an earlier one that still waits for a slow page.
    """

    strangers: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    later: Later = "nothing"
    only_latest: bool = False

    def for_strangers(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that a page without a token gets."""
        return {
            name: [] if name in self.emptied else value
            for name, value in body.items()
            if name in self.strangers
        }


# `context` is missing: it was typed for the large model alone.
STATE = (
    *("state", "trial", "reference", "session", "private"),
    *("model", "days", "day", "day_chosen", "gate_threshold"),
    *("options", "hotwords", "hotword_spelling", "context_conversation"),
)

KINDS = {
    "hello": Kind(
        (
            *("version", "run", "lm", "llm", "voice", "voice_takes"),
            *("n_features", "arrays", "bin_ms", "frame_ms", "budget_ms", "look_ahead_ms"),
            *("tokens", "groups", "unit", "separator", "language", "gate", "source"),
            *("rights", "can_control", "session_log", "latest"),
            *STATE,
        ),
        later="its own",
    ),
    # To strangers, too: sentences deleted while they were away leave their screens.
    "history": Kind(("entries",), emptied=("entries",), later="its own"),
    "step": Kind(
        (
            *("utterance", "t_ms", "bins", "n_bins", "posteriors", "n_frames"),
            *("stable", "tail", "stage_ms", "dropped"),
        )
    ),
    "utterance": Kind(
        (
            *("id", "session", "trial", "model", "entry", "when", "private"),
            *("text", "shown", "words", "confidence", "nbest", "ngram_text", "degraded"),
            *("reference", "wer", "words_per_minute", "duration_s", "latency_ms"),
            *("ended", "error"),
        ),
        later="the latest",
    ),
    "chosen": Kind(("utterance", "entry", "text", "shown"), later="the latest"),
    "turn": Kind(("entry", "when", "text")),
    "forgotten": Kind(("entries",)),
    "stats": Kind(
        ("n_utterances", "n_words", "words_per_minute", "wer", "latency", "final_ms"),
        later="its own",
        only_latest=True,
    ),
    "state": Kind(STATE, only_latest=True),
    "error": Kind(("what",)),
}
"""All kinds by their names."""
