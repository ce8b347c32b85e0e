"""The restated Transformer as a side of the training benchmark.

Reading, noise and smoothing are ours, in a thread that prepares the next batch. Time masks, model,
loss and optimiser are those of `benchmarks/transformer_restated.py`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.data import open_packed
from cortext.features import prepare
from cortext.text.inventory import RELEASE
from cortext.training import read_train_config
from cortext.training.batches import AUGMENTATION, Batches, TrainBatch, derived_seed
from cortext.training.setup import batch_sampler
from cortext_bench.training.sides import Clock, PartClock, SideSettings, answer, yardstick_module
from cortext_bench.workers import Missing


class RestatedSide:
    """The restated Transformer, on the batches that our sampler draws."""

    def __init__(self, plan: SideSettings) -> None:
        config = read_train_config(plan.recipe, plan.overrides)
        if config.model.kind != "transformer":
            raise Missing(f"the restated Transformer is no {config.model.kind}")
        if config.model.input_network.day_layer != "none":
            raise Missing("the restated Transformer has no day layers")
        module = yardstick_module(Path(plan.yardstick).with_name("transformer_restated.py"))
        packed = open_packed(Path(plan.folder) / "packed")
        chosen = config.dataset
        self.config = config
        self.split = packed.split("train")
        self.device = torch.device(plan.device)
        days_D = np.arange(len(packed.sessions))
        self.sampler = batch_sampler(chosen, self.split, days_D, len(days_D))
        self.batches = Batches(
            self.split,
            days_D,
            chosen.data_transforms,
            self.device,
            lambda n_bins: -(-n_bins // config.model.patch_size),
            clear_padding=True,
        )
        masks = [own for own in chosen.augmentations if own.kind == "time_mask"]
        torch.manual_seed(config.seed)
        self.trainer = module.RestatedTrainer(
            _shape(module, config.model, packed.n_features),
            lr=config.lr_max,
            n_masks=masks[0].n_masks if masks else 0,
            share=masks[0].max_share if masks else 0.0,
            autocast=self.device.type == "cuda" or plan.precision == "bf16",
            device=self.device,
        )
        self.done = 0
        self.facts = {
            "n_parameters": sum(parameter.numel() for parameter in self.trainer.model.parameters()),
            "precision": "bf16" if self.trainer.autocast else "fp32",
        }

    def steps(self, n: int) -> dict[str, Any]:
        """Time `n` steps."""
        clock = Clock(self.device)
        waits_ms = []
        first, self.done = self.done, self.done + n + 2
        batches = self.batches.training(self.sampler, self.config.seed, first, self.done)
        for _ in range(n + 2):
            started = time.perf_counter()
            batch = next(batches)
            waits_ms.append(1e3 * (time.perf_counter() - started))
            self.trainer.step(_tensors(batch))
            clock.tick()
        batches.close()
        return answer(clock, waits_ms)

    def parts(self, n: int) -> dict[str, Any]:
        """Time the parts of `n` steps, each part alone."""
        clock = PartClock(self.device)

        def mark(part: str) -> None:
            if part != "load":  # it has been read and put on the device already
                clock.end(part)

        for step in range(n):
            indices = self.sampler.indices(step)
            seed = derived_seed(self.config.seed, AUGMENTATION, step)
            batch = self.batches.batch(indices)  # for labels and lengths
            clock.start()
            x_BTC = self.batches._features(indices, slice(None))
            clock.end("load")
            x_BTC, _ = prepare(
                x_BTC,
                torch.from_numpy(self.split.n_bins_N[indices]),
                self.batches.transforms,
                torch.Generator(self.device).manual_seed(seed),
                clear_padding=True,
            )
            self.trainer.step(_tensors(batch) | {"x_BTC": x_BTC}, mark)
        return clock.ms


def _tensors(batch: TrainBatch) -> dict[str, torch.Tensor]:
    names = ("x_BTC", "n_bins_B", "labels_BU", "n_labels_B")
    return {name: getattr(batch, name) for name in names}


def _shape(module: Any, model: Any, n_features: int) -> Any:
    """Return the restated model's sizes for a TransformerConfig."""
    bidirectional = model.attention == "bidirectional"
    return module.Shape(
        n_features=n_features,
        n_classes=len(RELEASE),
        patch=model.patch_size,
        width=model.n_units,
        n_blocks=model.n_layers,
        n_heads=model.n_heads,
        head_width=model.head_units,
        input_dropout=model.input_network.input_layer_dropout,
        dropout=model.dropout,
        chunk=None if bidirectional else model.chunk_frames,
        context=model.context_frames,
        contexts=tuple(model.train_context_frames),
    )
