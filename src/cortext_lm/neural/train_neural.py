"""Training a small causal language model on a processor.

A Llama (Touvron et al., 2023) of a few million parameters.

Each sentence is a row of its own, `<s> sentence </s>`, and rows are batched by length: scoring
reads sentences in this form, and no attention is spent on sentences before. Rows are padded on the
right, where causal attention never looks, and padding has no loss.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from cortext.config import check_fields
from cortext.errors import LanguageModelError
from cortext.extras import need
from cortext.processes import Progress, threads
from cortext.provenance import provenance
from cortext.settings import SEED, THREADS, Setting
from cortext_lm.llm.loading import check_target, save_model
from cortext_lm.llm.model import SENTENCE_END
from cortext_lm.neural.loss import autocast, padded, summed_loss
from cortext_lm.neural.pieces import encode, train_pieces
from cortext_lm.neural.texts import Texts, TextSource, batches, length_batches, read_texts
from cortext_lm.ngram.build import in_place_of

Stage = Callable[[str], Progress | None]
WINDOW = 512
"""Most tokens that the model takes; longer sentences are cut."""
_WARMUP = 0.05
_LAST_LR = 0.02
_CHECKS = 20
_PATIENCE = 5


@dataclass(frozen=True)
class NeuralSettings:
    """Size of a model, and settings of its training.

    Raises LanguageModelError for values out of bounds.
    """

    pieces: Annotated[int, Setting(minimum=64, maximum=100_000)] = 4000
    """Word pieces, at most."""
    width: Annotated[int, Setting(minimum=8, maximum=4096)] = 192
    """Width of the embeddings and of the layers."""
    layers: Annotated[int, Setting(minimum=1, maximum=64)] = 3
    heads: Annotated[int, Setting(minimum=1, maximum=64)] = 3
    lr: Annotated[float, Setting(minimum=1e-7, maximum=1)] = 6e-3
    """Highest learning rate; warmed up, then half a cosine down."""
    weight_decay: Annotated[float, Setting(minimum=0, maximum=10)] = 0.1
    """Weight decay of the matrices within layers."""
    batch_tokens: Annotated[int, Setting(minimum=64, maximum=1 << 20)] = 4096
    """Tokens of a batch, padding included."""
    steps: Annotated[int | None, Setting(minimum=1, maximum=10_000_000)] = None
    """Number of batches. With a seed it decides the result; minutes depend on the machine."""
    minutes: Annotated[float | None, Setting(minimum=0.01, maximum=100_000)] = 10.0
    """Minutes after which training ends, reading not counted.

    Without `steps` the learning rate follows the clock.
    """
    threads: Annotated[int, THREADS] = 1
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_fields(self, error=LanguageModelError)
        if self.width % (2 * self.heads):
            raise LanguageModelError(
                f"width is {self.width}; {self.heads} heads need a multiple of {2 * self.heads}"
            )
        if self.steps is None and self.minutes is None:
            raise LanguageModelError("training would not end", fix="give steps or minutes")


def train_neural(
    texts: Sequence[str | Path],
    out: str | Path,
    options: NeuralSettings | None = None,
    held_out: Path | None = None,
    stage: Stage = lambda name: None,
) -> dict[str, Any]:
    """Train word pieces and a network on texts, and write a directory of transformers' form.

    Returns the content of `cortext.json` in the directory. Raises LanguageModelError for texts that
    cannot be used and for an `out` that holds something else; MissingLibrary without the extra
    `llm`.

    Args:
        texts: `FILE` or `FILE:FACTOR`; a text is read FACTOR times as often.
        out: Directory to write; one written here earlier is replaced.
        options: Settings of the training.
        held_out: The text whose loss decides which weights are kept; a part of each text by
            default.
        stage: Called with the name of each stage as it begins; returns the stage's progress
            callback or None.
    """
    need("transformers", "llm")
    options = options or NeuralSettings()
    out = Path(out)
    sources = [TextSource.of(text) for text in texts]
    check_target(out, [*(source.path for source in sources), *([held_out] if held_out else [])])
    read = read_texts(sources, held_out, stage)
    stage("word pieces")
    words = Counter(
        word for source in read.sentences for sentence in source for word in sentence.split()
    )
    tokenizer = train_pieces(words, options.pieces, WINDOW)
    with threads(options.threads), torch.random.fork_rng():
        torch.manual_seed(options.seed)
        network = new_network(tokenizer, options)
        training = _NeuralTraining(network, tokenizer, read, options)
        training.run(stage("training"))
    facts = {
        "kind": "neural language model",
        "parameters": sum(weight.numel() for weight in network.parameters()),
        "pieces": len(tokenizer),
        "sources": read.describe(),
        "held_out": str(held_out) if held_out else "a part of the texts",
        "options": asdict(options),
        **training.facts(),
        "provenance": provenance(),
    }
    with in_place_of(out) as partial:
        save_model(partial, network, tokenizer, facts)
    return facts


def new_network(tokenizer: Any, options: NeuralSettings) -> Any:
    """Return a `LlamaForCausalLM` with random weights for a tokenizer.

    Its configuration says that it ends sentences (`SENTENCE_END`).
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.width,
        intermediate_size=16 * math.ceil(options.width / 6),
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **{SENTENCE_END: True},
    )
    network = LlamaForCausalLM(config)
    # Eager attention is the fastest for short rows; whoever loads the model chooses anew.
    network.set_attn_implementation("eager")
    return network


def optimizers(
    layers: torch.nn.Module,
    parameters: Iterable[torch.nn.Parameter],
    lr: float,
    weight_decay: float,
) -> list[torch.optim.Optimizer]:
    """Return Muon (Jordan et al., 2024) for the layers' matrices and AdamW for other parameters.

    After equally many batches of this size the loss is far below that of AdamW alone
    (docs/measured/neural-lm.md).

    Args:
        layers: The layers whose matrices Muon trains.
        parameters: All parameters.
        lr: Learning rate of both.
        weight_decay: Weight decay of Muon; AdamW has none.
    """
    inner = [weight for weight in layers.parameters() if weight.dim() == 2]
    chosen = set(map(id, inner))
    others = [weight for weight in parameters if id(weight) not in chosen]
    return [
        torch.optim.Muon(inner, lr, weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


class _NeuralTraining:
    """One training of a network."""

    def __init__(self, network: Any, tokenizer: Any, texts: Texts, options: NeuralSettings) -> None:
        self.network = network
        self.options = options
        self.pad = tokenizer.pad_token_id
        self.characters = sum(len(sentence) + 1 for sentence in texts.held_out)

        def rows(sentences: Sequence[str]) -> list[list[int]]:
            ends = tokenizer.bos_token_id, tokenizer.eos_token_id
            return [
                [ends[0], *tokens, ends[1]][: WINDOW + 1] for tokens in encode(sentences, tokenizer)
            ]

        self.held_out = rows(texts.held_out)
        self.batches = batches(
            [rows(sentences) for sentences in texts.sentences],
            [source.factor for source in texts.sources],
            options.batch_tokens,
            options.seed,
        )
        self.optimizers = optimizers(
            network.model.layers, network.parameters(), options.lr, options.weight_decay
        )
        self.best = math.inf
        self.best_weights = copy.deepcopy(network.state_dict())
        self.history: list[dict[str, float | None]] = []
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def run(self, bar: Progress | None) -> None:
        """Train until steps or minutes are used up or the held-out loss no longer falls.

        The weights with the lowest loss are kept.
        """
        started = time.monotonic()
        cpu_started = time.process_time()
        checks = 0
        since_best = 0
        while (share := self._share(time.monotonic() - started)) < 1:
            self._learn(next(self.batches), self.options.lr * schedule(share))
            if bar:
                bar(round(1000 * share), 1000)
            if share * _CHECKS >= checks + 1:
                checks = int(share * _CHECKS)
                since_best = 0 if self._check_held_out(share) else since_best + 1
                if since_best == _PATIENCE:
                    break
        self._check_held_out(1.0)
        if self.best == math.inf:
            raise LanguageModelError(
                "nothing was learnt: the loss is no number", fix="use a lower learning rate (--lr)"
            )
        self.seconds = time.monotonic() - started
        self.cpu_seconds = time.process_time() - cpu_started
        self.network.load_state_dict(self.best_weights)

    def _share(self, elapsed_s: float) -> float:
        """Return the share of the training that is done, from 0 to 1."""
        options = self.options
        by_steps = self.step / options.steps if options.steps else 0.0
        by_clock = elapsed_s / (60 * options.minutes) if options.minutes else 0.0
        # Where steps are given, the schedule may not depend on the clock: the clock only ends the
        # training.
        return by_steps if options.steps and by_clock < 1 else by_clock

    def _learn(self, rows: Sequence[Sequence[int]], lr: float) -> None:
        self.network.train()
        n_tokens = sum(map(len, rows)) - len(rows)
        with autocast():
            loss = summed_loss(self.network, *padded(rows, self.pad)) / n_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += n_tokens

    def _check_held_out(self, share: float) -> bool:
        """Measure the held-out loss; keep the weights where it is the lowest so far."""
        total = 0.0
        self.network.eval()
        with torch.no_grad(), autocast():
            for group in length_batches(self.held_out, 4096):
                rows = [self.held_out[row] for row in group]
                total += float(summed_loss(self.network, *padded(rows, self.pad)))
        bits = total / math.log(2) / self.characters
        shown = round(bits, 4) if math.isfinite(bits) else None  # JSON has no other numbers
        self.history.append(
            {"step": self.step, "share": round(share, 3), "bits_per_character": shown}
        )
        if not bits < self.best:  # also where the loss is NaN
            return False
        self.best = bits
        self.best_weights = copy.deepcopy(self.network.state_dict())
        return True

    def facts(self) -> dict[str, Any]:
        """Return facts about the training."""
        return {
            "bits_per_character": round(self.best, 4),
            "steps": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "history": self.history,
        }


def schedule(share: float) -> float:
    """Return the learning rate, as a fraction of the highest, after a share of the training."""
    if share < _WARMUP:
        return max(share / _WARMUP, 1e-3)
    cosine = 0.5 * (1 + math.cos(math.pi * (share - _WARMUP) / (1 - _WARMUP)))
    return _LAST_LR + (1 - _LAST_LR) * cosine
