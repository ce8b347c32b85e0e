"""Decoding with and without a large language model, in a process of its own.

python -m cortext_bench.llm.worker POSTERIORS OPTIONS LM [MODEL DEVICE [LORA]]    (.npz, JSON,
directories)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding import Decoder, DecoderOptions, NBest
from cortext.decoding.nbest import Hypothesis
from cortext.errors import CortextError
from cortext.memory import gpu_memory, memory
from cortext.provenance import provenance
from cortext_bench.posteriors import INVENTORY
from cortext_bench.workers import Missing, own_stdout, serve
from cortext_lm.llm.fusion import FusionStats
from cortext_lm.llm.large_model import LLM, ranked
from cortext_lm.llm.scoring import TokenScore

Read = list[list[tuple[Hypothesis, TokenScore]]]
"""The hypotheses of each utterance with what the large model says of them."""


class CountingReader(LLM):
    """A large model that counts the tokens of the lists that it ranks, too."""

    def start(self) -> None:
        """Count from nothing."""
        self.fusion = FusionStats()
        self.ranked_tokens = 0

    def read(self, lists: Sequence[NBest], options: DecoderOptions, context: str = "") -> Read:
        """See `LLM.read`."""
        found = super().read(lists, options, context)
        texts = {hypothesis.text: said.n_tokens for one in found for hypothesis, said in one}
        self.ranked_tokens += sum(texts.values())
        return found


class LLMWorker:
    """A word search, a large model where one is named, and the utterances to decode."""

    def __init__(
        self,
        posteriors: Path,
        options: Mapping[str, Any],
        lm: str,
        llm: str | None = None,
        device: str = "cpu",
        lora: str | None = None,
    ) -> None:
        with np.load(posteriors) as arrays:
            self.utterances = [arrays[str(number)] for number in range(len(arrays.files))]
        self.decoder = Decoder.from_dir(lm, options)
        self.reader = CountingReader.load(llm, lora, device) if llm else None
        model = self.reader.describe() if self.reader else None
        self.facts = {
            "memory_loaded": memory(),
            "model": model,
            "versions": provenance()["versions"],
        }

    def decode(
        self,
        settings: Mapping[str, Any],
        chosen: Sequence[int],
        ranked: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Decode utterances one after the other.

        The result has sentences, seconds by the clock and by the processor, tokens and memory.

        Args:
            settings: Options of the search that differ from the worker's.
            chosen: Numbers of the utterances.
            ranked: Settings by which the lists are ranked, where those of the search are others.
        """
        decoder = self.decoder.with_options(**settings)
        options = decoder.options.changed(ranked or {})
        fuses = self.reader is not None and options.llm.mode == "fusion"
        searching = decoder.with_llm(self.reader if fuses else None)
        if self.reader:
            self.reader.start()
        clock = time.perf_counter()
        processor = time.process_time()
        texts = []
        failed = []
        for number in chosen:
            nbest = searching.decode(self.utterances[number], INVENTORY)
            if self.reader and not fuses:
                (nbest,) = self.reader.rank([nbest], options)
            texts.append(nbest[0].text)
            if nbest.degraded:
                failed.append(nbest.degraded)
        seconds = time.perf_counter() - clock
        busy = time.process_time() - processor
        if failed:
            raise Missing(f"{len(failed)} utterances went without the large model: {failed[0]}")
        answer = {
            "texts": texts,
            "seconds": seconds,
            "busy": busy,
            "memory": memory() | gpu_memory(),
        }
        return answer | {"tokens": self._tokens()}

    def rerank(
        self, settings: Mapping[str, Any], tried: Sequence[Mapping[str, Any]], chosen: Sequence[int]
    ) -> dict[str, Any]:
        """Decode, score the lists with the large model once, and rank them by each setting.

        Args:
            settings: Decoder options of the search.
            tried: Changes of these options, each of which ranks the lists anew.
            chosen: Numbers of the utterances.

        Returns:
            `texts`: for each change, the best sentence of each utterance.
        """
        assert self.reader
        decoder = self.decoder.with_options(**settings)
        self.reader.start()
        lists = [decoder.decode(self.utterances[number], INVENTORY) for number in chosen]
        read = self.reader.read(lists, decoder.options)
        options = [decoder.options.changed(one) for one in tried]
        return {"texts": [[ranked(one, each)[0].text for one in read] for each in options]}

    def _tokens(self) -> dict[str, int]:
        """Count the tokens that the large model read.

        `from_scratch` is the number if each query of the search had started from the first token.
        """
        if self.reader is None:
            return {"read": 0, "from_scratch": 0}
        fused = self.reader.fusion
        at_end = self.reader.ranked_tokens
        return {"read": fused.evaluated + at_end, "from_scratch": fused.from_scratch + at_end}


def main() -> None:
    """Serve one search."""
    answers = own_stdout()
    posteriors, options, *models = sys.argv[1:]

    def begin() -> tuple[LLMWorker, dict[str, Any]]:
        try:
            worker = LLMWorker(Path(posteriors), json.loads(options), *models)
        except CortextError as error:
            raise Missing(str(error)) from None
        return worker, worker.facts

    serve(begin, sys.stdin, answers)


if __name__ == "__main__":
    main()
