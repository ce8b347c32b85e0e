"""Finetuning a causal language model on one's own sentences with LoRA, through peft.

Hu et al., ICLR 2022. Sentences are learnt as they are scored: after the token that stands
before everything, with an end only where the model was trained to end sentences, and padding
has no loss.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.nn import functional

from cortext.config import check_fields
from cortext.errors import LanguageModelError
from cortext.extras import need
from cortext.processes import Progress, threads
from cortext.provenance import provenance
from cortext.settings import SEED, THREADS, Setting
from cortext_lm.llm.explain import out_of_memory
from cortext_lm.llm.loading import check_target, quiet, save_model, write_facts
from cortext_lm.llm.model import CausalLM
from cortext_lm.neural.loss import IGNORED, autocast, padded
from cortext_lm.neural.texts import TextSource, batches, length_batches, read_texts
from cortext_lm.neural.train_neural import schedule
from cortext_lm.ngram.build import in_place_of

Stage = Callable[[str], Progress | None]
_CHECKS = 12
_MOST_HELD_OUT = 1000
_LARGEST_MEAN = 700.0
"""Largest loss per token whose perplexity a float holds."""


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings for training an adapter. Raises LanguageModelError for values out of bounds."""

    rank: Annotated[int, Setting(minimum=1, maximum=4096)] = 16
    """Rank of the matrices whose product is added to each matrix of the model."""
    alpha: Annotated[float, Setting(minimum=1e-3, maximum=1e5)] = 32.0
    """The product of the added matrices is scaled by alpha / rank."""
    dropout: Annotated[float, Setting(minimum=0, maximum=0.9)] = 0.05
    lr: Annotated[float, Setting(minimum=1e-8, maximum=1)] = 2e-4
    """Highest learning rate of AdamW; warmed up, then half a cosine down."""
    epochs: Annotated[float, Setting(minimum=0.01, maximum=1e4)] = 2.0
    """Readings of the texts, each as often as its factor says."""
    batch_tokens: Annotated[int, Setting(minimum=16, maximum=1 << 22)] = 1024
    """Tokens of a batch, padding included; less takes less memory."""
    patience: Annotated[int, Setting(minimum=1, maximum=1000)] = 3
    """Checks in a row without a lower held-out perplexity after which training ends.

    There is a check after each twelfth of the training.
    """
    threads: Annotated[int, THREADS] = 1
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_fields(self, error=LanguageModelError)


def finetune(
    model: str | Path,
    texts: Sequence[str | Path],
    out: str | Path,
    options: FinetuneSettings | None = None,
    *,
    held_out: Path | None = None,
    merge: Path | None = None,
    device: str = "auto",
    stage: Stage = lambda name: None,
) -> dict[str, Any]:
    """Train a LoRA adapter for a model on texts and write it to the directory `out`.

    Returns the content of `cortext.json` in `out`. Raises LanguageModelError for models and texts
    that cannot be used, for directories that hold something else, and where memory runs out;
    MissingLibrary without the extra `llm`.

    Args:
        model: A directory, or a name of the Hugging Face Hub.
        texts: `FILE` or `FILE:FACTOR`; a text is read FACTOR times as often.
        out: Directory to write; one written here earlier is replaced.
        options: Settings of the training.
        held_out: The text whose perplexity decides which weights are kept; a part of each text by
            default.
        merge: A second directory, for the model with the adapter merged into its weights.
        device: See `CausalLM.load`.
        stage: Called with the name of each stage as it begins; returns the stage's progress
            callback or None.
    """
    need("peft", "llm")
    options = options or FinetuneSettings()
    out = Path(out)
    sources = [TextSource.of(text) for text in texts]
    kept = [model, *(source.path for source in sources), *([held_out] if held_out else [])]
    check_target(out, [*kept, *([merge] if merge else [])])
    if merge:
        check_target(merge, [*kept, out])
    read = read_texts(sources, held_out, stage)
    stage("loading")
    lm = CausalLM.load(model, device=device)
    forked = [lm.device] if lm.device.type == "cuda" else []
    with threads(options.threads), torch.random.fork_rng(forked), explained_memory(lm.name):
        torch.manual_seed(options.seed)
        held = random.Random(options.seed).sample(
            read.held_out, min(len(read.held_out), _MOST_HELD_OUT)
        )
        training = _Finetuning(
            lm, [rows(lm, part) for part in read.sentences], rows(lm, held), options
        )
        training.run([source.factor for source in read.sources], stage("finetuning"))
    facts = {
        "kind": "LoRA adapter",
        "base": lm.describe(),
        "sources": read.describe(),
        "held_out": str(held_out) if held_out else "a part of the texts",
        "options": asdict(options),
        **training.facts(),
        "provenance": provenance(),
    }
    stage("writing")
    with in_place_of(out) as partial, quiet(need("transformers", "llm")):
        training.network.save_pretrained(partial)
        (partial / "README.md").unlink(missing_ok=True)  # an empty form of the library's
        write_facts(partial, facts)
    if merge:
        with in_place_of(merge) as partial:
            save_model(partial, training.network.merge_and_unload(), lm.tokenizer, facts)
    return facts


def rows(lm: CausalLM, sentences: Sequence[str]) -> list[list[int]]:
    """Return the tokens of sentences, as scoring reads them, cut to the model's window."""
    end = [] if lm.end is None else [lm.end]
    return [[*lm.prefix(), *lm.tokens(sentence), *end][: lm.window + 1] for sentence in sentences]


def target_modules(network: Any) -> list[str]:
    """Return the names that the model's family gives to the matrices of its layers, sorted.

    The output layer is left out.
    """
    from transformers.pytorch_utils import Conv1D

    output = network.get_output_embeddings()
    matrices = (torch.nn.Linear, Conv1D)
    by_name = {
        name.rpartition(".")[2]: each
        for name, each in network.named_modules()
        if isinstance(each, matrices)
    }
    return sorted(name for name, each in by_name.items() if each is not output)


@contextmanager
def explained_memory(name: str) -> Iterator[None]:
    """Turn an error of memory that runs out into a LanguageModelError."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        fix = "use fewer --batch-tokens, a smaller model or another --device"
        raise LanguageModelError(
            "not enough memory to finetune the model", where=name, fix=fix
        ) from error


class _Finetuning:
    """One training of an adapter."""

    def __init__(
        self,
        lm: CausalLM,
        texts: Sequence[list[list[int]]],
        held_out: list[list[int]],
        options: FinetuneSettings,
    ) -> None:
        peft = need("peft", "llm")
        self.name = lm.name
        self.device = lm.device
        self.pad = lm.start
        self.options = options
        self.texts = texts
        self.held_out = held_out
        self.target_modules = target_modules(lm.network)
        config = peft.LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha,
            lora_dropout=options.dropout,
            task_type="CAUSAL_LM",
            target_modules=self.target_modules,
        )
        with quiet(need("transformers", "llm")):
            self.network = peft.get_peft_model(lm.network, config)
        self.added = {
            name: each for name, each in self.network.named_parameters() if each.requires_grad
        }
        self.optimizer = torch.optim.AdamW(self.added.values(), lr=options.lr, weight_decay=0.0)
        self.best = math.inf
        self.best_weights = dict[str, torch.Tensor]()
        self.history: list[dict[str, float | None]] = []
        self.steps = 0
        self.tokens = 0
        self.seconds = 0.0

    def run(self, factors: Sequence[float], bar: Progress | None) -> None:
        """Train until the texts are read or the held-out perplexity no longer falls.

        The weights with the lowest perplexity are kept.
        """
        started = time.monotonic()
        total = self.options.epochs * sum(
            factor * sum(len(row) - 1 for row in text)
            for factor, text in zip(factors, self.texts, strict=True)
        )
        if not self._check_held_out():
            problem = (
                "the held-out text has no probability under the model, as far as it can be computed"
            )
            raise LanguageModelError(
                problem, where=self.name, fix="give another model, or another --device"
            )
        checks, since_best = 0, 0
        for batch in batches(self.texts, factors, self.options.batch_tokens, self.options.seed):
            share = self.tokens / total
            if share * _CHECKS >= checks + 1:
                checks = int(share * _CHECKS)
                since_best = 0 if self._check_held_out() else since_best + 1
            if share >= 1 or since_best == self.options.patience:
                break
            self._learn(batch, self.options.lr * schedule(share))
            if bar:
                bar(min(self.tokens, int(total)), int(total))
        self.seconds = time.monotonic() - started
        with torch.no_grad():
            for name, weight in self.added.items():
                weight.copy_(self.best_weights[name])
        self.network.eval()

    def _learn(self, batch: Sequence[Sequence[int]], lr: float) -> None:
        self.network.train()
        n_tokens = sum(map(len, batch)) - len(batch)
        self.optimizer.param_groups[0]["lr"] = lr
        loss = self._summed_loss(batch) / n_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.added.values(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.tokens += n_tokens

    def _summed_loss(self, batch: Sequence[Sequence[int]]) -> torch.Tensor:
        inputs_BT, targets_BT = (each.to(self.device) for each in padded(batch, self.pad))
        with autocast() if self.network.training else nullcontext():
            logits_BTV = self.network(input_ids=inputs_BT, use_cache=False).logits
        real_BT = targets_BT != IGNORED
        return functional.cross_entropy(
            logits_BTV[real_BT].float(), targets_BT[real_BT], reduction="sum"
        )

    def _check_held_out(self) -> bool:
        """Measure the held-out perplexity; keep the weights where it is the lowest so far."""
        self.network.eval()
        with torch.no_grad():
            total = sum(
                float(self._summed_loss([self.held_out[row] for row in group]))
                for group in length_batches(self.held_out, self.options.batch_tokens)
            )
        mean = total / sum(len(row) - 1 for row in self.held_out)
        # A mean that is NaN gives inf, too.
        perplexity = math.exp(mean) if mean < _LARGEST_MEAN else math.inf
        self.history.append(
            {"step": self.steps, "perplexity": perplexity if perplexity < math.inf else None}
        )
        if perplexity >= self.best:
            return False
        self.best = perplexity
        self.best_weights = {name: weight.detach().clone() for name, weight in self.added.items()}
        return True

    def facts(self) -> dict[str, Any]:
        """Return facts about the training; perplexities are per token of the held-out text."""
        return {
            "perplexity_before": self.history[0]["perplexity"],
            "perplexity_after": self.best,
            "target_modules": self.target_modules,
            "trained_parameters": sum(weight.numel() for weight in self.added.values()),
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "history": self.history,
        }
