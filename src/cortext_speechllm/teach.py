"""Teach a small language model to read phonemes, from text alone.

A published audio language model has transcribed thousands of hours of speech: it can read its audio
input. A model that was assembled from a text model cannot, and a few hundred recordings do not
teach it. Text is plentiful. Each sentence is an example: the dictionary pronounces it, and a
`PhonemeBank` draws the encoder's outputs for its phonemes. Examples are short at first, because the
alignment is easier to find in few words.

B sentences, Q merged patches, D hidden units.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from cortext.config import check_fields
from cortext.data import open_data
from cortext.errors import DataError
from cortext.extras import need
from cortext.features import AugmentationConfig
from cortext.models import load_model
from cortext.processes import Progress, threads
from cortext.provenance import provenance
from cortext.settings import ABOVE_0, AT_LEAST_0, AT_LEAST_1, FROM_0_BELOW_1
from cortext.text.lexicon import Lexicon, Pronunciation
from cortext.text.pronunciation import pronouncer
from cortext_lm.llm.loading import check_target, quiet, write_facts
from cortext_lm.neural.loss import autocast
from cortext_lm.neural.train_neural import optimizers, schedule
from cortext_lm.ngram.build import in_place_of
from cortext_speechllm.audio_llm.inputs import answer_logits, teacher_forced
from cortext_speechllm.audio_llm.loading import revision_there
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import SpeechConfig
from cortext_speechllm.losses.speech_loss import token_cross_entropy
from cortext_speechllm.model import AUDIO_LLM, SpeechLLM
from cortext_speechllm.phoneme_bank import PhonemeBank, label_of

LONGEST = 14
"""Words of the longest pieces, before whole sentences are read."""


@dataclass(frozen=True)
class TeachSettings:
    """Settings of teaching from text. Raises ConfigError for impossible values."""

    batches: Annotated[int, AT_LEAST_1] = 600
    lr: Annotated[float, ABOVE_0] = 4e-3
    """Highest learning rate."""
    positions: Annotated[int, AT_LEAST_1] = 1600
    """Approximate number of phonemes and tokens in a batch."""
    short: Annotated[float, FROM_0_BELOW_1] = 0.5
    """Share of the batches with pieces of sentences; pieces grow from one word to `LONGEST`."""
    seed: Annotated[int, AT_LEAST_0] = 0
    threads: Annotated[int, AT_LEAST_1] = 1

    def __post_init__(self) -> None:
        check_fields(self)


def teach_from_text(
    run: str | Path,
    texts: Sequence[str | Path],
    data: str | Path,
    audio_llm: str | Path,
    out: str | Path,
    options: TeachSettings | None = None,
    *,
    lexicon: str | Path | None = None,
    prompt: str = SpeechConfig.prompt,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a speech LLM whose language model reads phonemes as the encoder of `run` gives them.

    The language model sees no recording. Raises a CortextError for errors that a user can correct.

    Args:
        run: Run of `cortext train`, with a CTC loss.
        texts: Files with one sentence per line; they must not hold the sentences of the evaluation.
        data: The recordings that the run was trained on, for a `PhonemeBank`.
        audio_llm: A small audio LLM (`cortext speech-llm assemble`); its whole language model is
            trained, in float32.
        out: Run directory of a speech LLM to write (`SpeechLLM.load`); it holds the trained
            language model.
        options: Options; by default `TeachSettings()`.
        lexicon: Pronunciations of the texts' words (`Lexicon.read`), which an inventory of one's
            own needs; None for the usual way of the inventory (`text.pronouncer`).
        prompt: Instruction to the language model.
        progress: Called with the number of batches done and of all.

    Returns:
        The seconds, the losses of the first and the last tenth, and the origin, as they are written
        beside the model.
    """
    options = options or TeachSettings()
    out = Path(out)
    encoder = load_model(run)
    inventory, language = encoder.inventory, encoder.language
    sentences = [
        words for path in texts for line in _lines(Path(path)) if (words := language.words(line))
    ]
    if not sentences:
        raise DataError(
            "there is no sentence in the text",
            where=texts[0] if texts else None,
            fix="give another file",
        )
    listed = None if lexicon is None else Lexicon.read(lexicon, inventory, closed=False)
    find = pronouncer(inventory, language, listed)
    pronounced = {word: find(word) for words in sentences for word in words}
    llm = AudioLLM.load(audio_llm, device="cpu")
    speech = SpeechConfig(
        audio_llm=str(out / AUDIO_LLM), prompt=prompt, alpha=0.0, merge_blanks=True
    )
    check_target(out, [run, audio_llm, data, *texts])
    with threads(options.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        model = SpeechLLM.around(encoder, speech, llm.audio_width, llm)
        phonemes = PhonemeBank(encoder, open_data(data), AugmentationConfig(), options.seed)
        facts = _TextTraining(model, phonemes, sentences, pronounced, options).learn(progress)
    with in_place_of(out) as partial:
        with quiet(need("transformers", "speechllm")):
            llm.network.save_pretrained(partial / AUDIO_LLM)
            llm.processor.save_pretrained(partial / AUDIO_LLM)
        llm.revision = revision_there(partial / AUDIO_LLM)
        model.save(partial)
        facts |= {"kind": "speech LLM that reads", "run": str(run), "options": asdict(options)}
        facts |= {"sentences": len(sentences), "provenance": provenance()}
        write_facts(partial, facts)
    return facts


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot be read as text ({error})", where=path, fix="give a file of sentences"
        ) from None


class _TextTraining:
    """A training of both projectors, and of the language model with its output layer."""

    def __init__(
        self,
        model: SpeechLLM,
        phonemes: PhonemeBank,
        sentences: list[list[str]],
        pronounced: Mapping[str, tuple[Pronunciation, ...]],
        options: TeachSettings,
    ) -> None:
        self.network = model.network
        self.llm = model.network.llm
        self.phonemes = phonemes
        self.sentences = sentences
        self.options = options
        self.inventory = model.inventory
        self.pronounced = pronounced
        self.rng = random.Random(options.seed)
        self.prompt = self.llm.prompt(self.network.speech.prompt)
        learns = [self.llm.body.language_model, self.llm.body.multi_modal_projector]
        learns += [self.llm.network.get_output_embeddings(), self.network.projector]
        self.weights = list(
            dict.fromkeys(weight for module in learns for weight in module.parameters())
        )
        for weight in self.weights:
            weight.requires_grad_(True)
        self.optimizers = optimizers(
            self.llm.language_model.layers, self.weights, options.lr, weight_decay=0.0
        )

    def learn(self, progress: Progress | None) -> dict[str, Any]:
        """Train on all batches; return seconds, and the losses of the first and the last tenth."""
        started = time.monotonic()
        losses = list[float]()
        total = self.options.batches
        for number in range(total):
            hidden, answers = self._batch(number / total)
            n_vectors_B = torch.tensor([len(hidden_QD) for hidden_QD in hidden])
            self.network.train()
            with autocast():
                read_BQA = self.network.projector(
                    torch.nn.utils.rnn.pad_sequence(hidden, batch_first=True)
                )
                sequence = teacher_forced(self.llm, read_BQA, n_vectors_B, self.prompt, answers)
                logits_BKV = answer_logits(self.llm, sequence)
            loss_B = token_cross_entropy(logits_BKV, sequence.targets_BK, sequence.n_tokens_B)
            share_B = sequence.n_tokens_B / sequence.n_tokens_B.sum()  # each token counts alike
            loss = (loss_B * share_B).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
            for optimizer in self.optimizers:
                optimizer.param_groups[0]["lr"] = self.options.lr * schedule(number / total)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            if progress:
                progress(number + 1, total)
        for weight in self.weights:
            weight.requires_grad_(False)
        self.network.eval()
        tenth = max(1, total // 10)
        first, last = (
            round(sum(part) / len(part), 4) for part in (losses[:tenth], losses[-tenth:])
        )
        return {
            "seconds": round(time.monotonic() - started, 1),
            "loss_first": first,
            "loss_last": last,
        }

    def _batch(self, share: float) -> tuple[list[torch.Tensor], list[list[int]]]:
        """Return encoder outputs and answers of sentences of similar length."""
        grown = share / self.options.short if self.options.short else 1.0
        most = 1 + int(grown * (LONGEST - 1)) if grown < 1 else None
        # On average a piece is half as long as the longest; a sentence has about nine words.
        words = min(most, 9) / 2 + 0.5 if most else 9
        count = max(8, int(self.options.positions / (20 + 6 * words)))
        pool = sorted((self._piece(most) for _ in range(4 * count)), key=len)
        first = count * self.rng.randrange(4)
        chosen = pool[first : first + count]
        hidden = [
            self.phonemes.sample(
                label_of(one, self.inventory, self.pronounced.__getitem__), self.rng
            )
            for one in chosen
        ]
        return hidden, [self.llm.answer(" ".join(one)) for one in chosen]

    def _piece(self, most: int | None) -> list[str]:
        """Draw a sentence, or a piece of one with at most `most` words."""
        words = self.rng.choice(self.sentences)
        length = len(words) if most is None else min(self.rng.randint(1, most), len(words))
        first = self.rng.randrange(len(words) - length + 1)
        return words[first : first + length]
