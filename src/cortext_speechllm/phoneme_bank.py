"""Encoder outputs for sentences that nobody attempted, to teach a language model from text.

Each phoneme of the training labels is aligned to the encoder's merged vectors: none, one or
several. A new sentence is pronounced as labels are, and each of its phonemes takes the vectors of
one such phoneme, drawn at random. Deletions, substitutions and insertions are therefore as
frequent as in the recordings.

P patches, Q merged patches, D hidden units.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from cortext.data.packed import PackedDataset
from cortext.errors import DataError
from cortext.features import AugmentationConfig
from cortext.models import AcousticModel
from cortext.text import align
from cortext.text.inventory import Inventory
from cortext.text.pronunciation import Pronouncer
from cortext.training.batches import Batches
from cortext.training.setup import day_layers
from cortext_speechllm.network import merge_blanks

TRIALS_AT_ONCE = 32


class PhonemeBank:
    """Encoder outputs by phoneme, collected from the training split.

    Args:
        model: Acoustic model whose outputs are collected.
        data: The data that it was trained on.
        noise: Augmentation of the features.
        seed: Seed of the noise.
        readings: Number of times that each trial is decoded, each with other noise.

    Raises:
        DataError: Where the encoder decodes only blanks, where the data cannot be read, and where
            their conventions are not the model's.
    """

    def __init__(
        self,
        model: AcousticModel,
        data: PackedDataset,
        noise: AugmentationConfig,
        seed: int = 0,
        readings: int = 2,
    ) -> None:
        data.conventions.require(
            model.conventions, mine="the data", theirs="the run", where=data.path
        )
        split = data.split("train").select(
            sessions=[name for name in data.sessions if name in model.sessions]
        )
        network = model.network.eval()
        batches = Batches(
            split,
            day_layers(data, model.sessions),
            noise,
            model.device,
            network.n_patches,
            clear_padding=model.pads_last_patch,
        )
        generator = torch.Generator(model.device).manual_seed(seed)
        order = np.argsort(split.n_bins_N, kind="stable")
        self._pieces: dict[int, list[torch.Tensor]] = {}
        for start in range(0, len(order) * readings, TRIALS_AT_ONCE):
            batch = batches.batch(
                np.resize(order, len(order) * readings)[start : start + TRIALS_AT_ONCE], generator
            )
            with torch.no_grad():
                hidden_BPD, _ = network.hidden(
                    batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B
                )
                tokens_BP = network.read_out(hidden_BPD).argmax(-1)
            merged_BQD, n_merged_B = merge_blanks(
                hidden_BPD, tokens_BP, batch.n_patches_B.to(hidden_BPD.device)
            )
            for row, i in enumerate(batch.indices.tolist()):
                labels_U = split.labels(i)
                decoded = torch.unique_consecutive(tokens_BP[row, : int(batch.n_patches_B[row])])
                if labels_U is not None and (decoded := decoded[decoded != 0]).numel():
                    self._keep(
                        labels_U.tolist(), decoded.tolist(), merged_BQD[row, : int(n_merged_B[row])]
                    )
        if not self._pieces:
            unit = model.inventory.unit
            problem = f"the encoder decodes no {unit} in any training trial: it has not learnt"
            raise DataError(
                problem,
                where=data.path,
                fix="give a longer run of `cortext train`, with a CTC loss",
            )

    def _keep(self, labels: list[int], decoded: list[int], merged_QD: torch.Tensor) -> None:
        """Distribute the merged vectors of a trial among its labels.

        An inserted vector goes to the label before it.
        """
        own: list[list[int]] = [[] for _ in labels]
        label = -1
        vector = 0
        for wanted, decoded_token in align(labels, decoded):
            label += wanted is not None
            if decoded_token is not None:
                own[max(label, 0)].append(vector)
                vector += 1
        for token, vectors in zip(labels, own, strict=True):
            self._pieces.setdefault(token, []).append(merged_QD[vectors].half())

    def sample(self, phonemes: Sequence[int], rng: random.Random) -> torch.Tensor:
        """Draw hidden units float32 [Q, D] of a pronunciation, at least one vector.

        Unknown phonemes are left out.
        """
        pieces = [rng.choice(self._pieces[token]) for token in phonemes if token in self._pieces]
        hidden_QD = torch.cat(pieces) if pieces else next(iter(self._pieces.values()))[0][:0]
        return hidden_QD.float() if len(hidden_QD) else torch.zeros(1, hidden_QD.shape[1])


def label_of(words: Iterable[str], inventory: Inventory, find: Pronouncer) -> list[int]:
    """Return the tokens of words as the label of a sentence has them.

    Args:
        words: Normalised words.
        inventory: Tokens, which stand between words as the inventory has it.
        find: Gives a word's pronunciations, of which the first is taken.
    """
    tokens: list[int] = inventory.ids(inventory.closed(find(word)[0] for word in words)).tolist()
    return tokens
