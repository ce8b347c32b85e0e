"""A large model that says what it is given."""

from __future__ import annotations

from dataclasses import replace

from cortext.decoding import NBest


class Opinion:
    """A large model that says what it is given.

    It obeys the protocol, and nothing of it is random.

    said:  log-probability by sentence; the others have -50
    fails: whether it fails; it does, too, after the context "fail"
    """

    def __init__(self, **said):
        self.said, self.fails, self.contexts, self.hooked = said, False, [], []

    def search_options(self, options):
        return options

    def hook(self, options, context):
        self.hooked.append((context, options.llm.budget_ms))

    def rank(self, lists, options, context, progress=None):
        self.contexts.append(context)
        fails = self.fails or context == "fail"
        if fails or not options.llm.weight:
            return [
                NBest(nbest, "without the large model: no memory" if fails else None)
                for nbest in lists
            ]
        return [self._ranked(nbest, options) for nbest in lists]

    def _ranked(self, nbest, options):
        ngram, llm = options.llm.shares(options.lm_weight)
        found = []
        for one in nbest:
            said = self.said.get(one.text.replace(" ", "_"), -50.0)
            score = one.score + (ngram - options.lm_weight) * one.lm_score + llm * said
            found.append(replace(one, llm_score=said, score=score, confidence=0.5))
        return NBest(sorted(found, key=lambda one: -one.score))
