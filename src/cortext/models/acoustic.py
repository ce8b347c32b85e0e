"""A trained model as evaluation, decoding and export use it: features in, logits out.

It is saved as two files: `model.json` describes the model, `model.safetensors` holds its weights.
The weights also hold the content of `model.json`, so that a change of it is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cortext.arguments import as_path, check_list, check_type
from cortext.config import to_mapping
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.describe import Described, some
from cortext.errors import ConfigError, DataError, RunError, nearest, wrong_type
from cortext.features import smooth
from cortext.files import atomic_write
from cortext.models.card import (
    CARD,
    CTC,
    Conventional,
    ModelCard,
    Smoothing,
    check_unchanged,
    patch_shape,
    read_card,
)
from cortext.models.precision import full_float32
from cortext.models.registry import build_model, check_output, empty_model, model_config
from cortext.models.storage import check_finite, read_tensors, write_tensors
from cortext.plugins import blaming, place
from cortext.text.inventory import RELEASE, Inventory

NOT_FINITE = "gives logits that are not finite"
MEND = "look at the features, which may be far too large, or take another model"


class AcousticModel(Conventional, Described):
    """A trained model with its recording days, tokens and smoothing.

    Args:
        network: The `nn.Module`; it is put into evaluation mode.
        sessions: Recording days, in the order of the day layers.
        n_features: Features per bin of a recording.
        smoothing: Smoothing of the features in training.
        inventory: Tokens, in the order of the logits; None takes those of `conventions`.
        feature_subset: Numbers of the features that the model uses; None uses all.
        task: Name of the task that it was trained for.
        conventions: Conventions of the recordings that it was trained on.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        sessions: Sequence[str],
        n_features: int,
        smoothing: Smoothing,
        inventory: Inventory | None = None,
        feature_subset: Sequence[int] | None = None,
        task: str = CTC,
        conventions: Conventions = RELEASE_CONVENTIONS,
    ) -> None:
        check_type(network, nn.Module, "network", "a torch.nn.Module")
        check_type(inventory, (Inventory, type(None)), "inventory", "an Inventory")
        check_type(conventions, Conventions, "conventions", "Conventions")
        self.network: Any = network.eval()
        config: Any = getattr(network, "config", None)
        if not hasattr(config, "patch_size"):
            raise ConfigError("the network has no config with its patches", fix="see build_model")
        self.patch_size, self.patch_stride = patch_shape(config.patch_size, config.patch_stride)
        self.pads_last_patch = bool(getattr(network, "pads_last_patch", False))
        if self.pads_last_patch and self.patch_size != self.patch_stride:
            raise ConfigError(
                f"pads_last_patch with patches of {self.patch_size} bins every {self.patch_stride}",
                where=place(network, "pads_last_patch"),
                fix="only patches that do not overlap can be filled",
            )
        self.sessions = tuple(sessions)
        self.n_features = n_features
        self.conventions = (
            conventions if inventory is None else replace(conventions, inventory=inventory)
        )
        self.smoothing = smoothing
        self.feature_subset = list(feature_subset) if feature_subset is not None else None
        self.task = task

    @classmethod
    def of(cls, card: ModelCard, network: nn.Module) -> AcousticModel:
        """Return the model that a card describes, with its network."""
        return cls(
            network,
            sessions=card.sessions,
            n_features=card.n_features,
            smoothing=card.smoothing,
            feature_subset=card.feature_subset,
            task=card.task,
            conventions=card.conventions,
        )

    def _facts(self) -> dict[str, Any]:
        config = self.network.config
        facts = self.conventions.facts()
        facts.pop("inventory", None)  # the tokens say it
        return {
            "kind": config.kind,
            "parameters": self.n_parameters,
            "features": self.n_features,
            "used features": self.feature_subset and len(self.feature_subset),
            "sessions": some(self.sessions),
            "patches": f"{config.patch_size} bins every {config.patch_stride}",
            "look-ahead": look_ahead_text(self.look_ahead_ms),
            "tokens": f"{len(self.inventory)} ({self.inventory.name})",
            **facts,
            "task": None if self.task == CTC else self.task,
            "device": self.device,
        }

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        device: torch.device = next(iter(self.network.parameters())).device
        return device

    @property
    def n_used_features(self) -> int:
        """Number of features that the network reads: those of `feature_subset`, or all."""
        return self.n_features if self.feature_subset is None else len(self.feature_subset)

    @property
    def look_ahead_ms(self) -> float | None:
        """Milliseconds that a frame depends on after its patch; None for the whole trial.

        Smoothing looks ahead even if the network does not.
        """
        frames = look_ahead_frames(self.network)
        if frames is None:
            return None
        return self.smoothing.look_ahead_bins * self.bin_ms + frames * self.frame_ms

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def day(self, session: str) -> int:
        """Return the number of the session's day layer; see `day_of`."""
        return day_of(session, self.sessions)[1]

    def n_patches(self, n_bins: Any, smooth: bool = True) -> Any:
        """Return the frames that `logits` gives for `n_bins` bins (an int or an integer array)."""
        return self.network.n_patches(n_bins - self._lost_bins(smooth))

    def logits(self, features_TC: np.ndarray, session: str, smooth: bool = True) -> np.ndarray:
        """Compute the logits of one trial.

        Args:
            features_TC: Float [T, C], features as they were recorded.
            session: Recording day; `latest` is the last one.
            smooth: Smooth with padding 'valid', as the release evaluates trials; False takes
                features that have been smoothed.

        Returns:
            Float32 [P, V], tokens in the order of `inventory`.

        Raises:
            RunError: For an unknown session.
            DataError: For a wrong number of features or bins.
        """
        features_TC = as_features(features_TC)
        if features_TC.ndim != 2:
            raise DataError(
                f"features have shape {list(features_TC.shape)}; [bins, {self.n_features}] is"
                " needed for this model"
            )
        n_bins_B = np.array([len(features_TC)])
        logits_PV: np.ndarray = self.logits_batch(
            features_TC[None], [session], n_bins_B, smooth=smooth
        )[0][0]
        return logits_PV

    def log_probs(self, features_TC: np.ndarray, session: str, smooth: bool = True) -> np.ndarray:
        """Compute the log-probabilities (natural) float32 [P, V] of one trial.

        Args:
            features_TC: Float [T, C], features as they were recorded.
            session: Recording day; `latest` is the last one.
            smooth: Smooth the features first; see `logits`, also for the errors.
        """
        logits_PV = torch.from_numpy(self.logits(features_TC, session, smooth))
        return np.asarray(logits_PV.log_softmax(-1).numpy())

    @torch.no_grad()
    def logits_batch(
        self,
        features_BTC: np.ndarray,
        sessions: Sequence[str],
        n_bins_B: np.ndarray,
        smooth: bool = True,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute the logits of several trials; they agree with those of `logits` to 1e-5.

        Args:
            features_BTC: Float [B, T, C]; bins beyond a trial's own are never read.
            sessions: Recording day of each trial.
            n_bins_B: int [B], bins of each trial.
            smooth: Smooth the features first; see `logits`.

        Returns:
            Logits float32 [B, P, V], zero beyond each trial's frames, and the frames int64 [B] of
            each trial.

        Raises:
            RunError: For an unknown session, and for logits that are not finite.
            DataError: For a wrong number of features or bins.
        """
        x_BTC, day_B, n_patches_B = self.prepared(features_BTC, sessions, n_bins_B, smooth)
        with full_float32(), blaming(self.network):
            output = self.network(x_BTC, day_B, n_patches_B=torch.from_numpy(n_patches_B))
        n_frames = int(self.network.n_patches(x_BTC.shape[1]))
        shape = len(x_BTC), n_frames, len(self.inventory)
        logits_BPV = check_output(
            self.network, output, shape, int(n_patches_B.max())
        ).logits.float()
        n_patches = torch.arange(logits_BPV.shape[1], device=self.device)
        outside_BP = n_patches >= torch.from_numpy(n_patches_B).to(self.device)[:, None]
        logits_BPV = logits_BPV.masked_fill(outside_BP[..., None], 0.0).cpu()
        if not bool(logits_BPV.isfinite().all()):
            wrong = int(logits_BPV.isfinite().flatten(1).all(1).int().argmin())
            raise RunError(f"a trial of {sessions[wrong]} {NOT_FINITE}", fix=MEND)
        return logits_BPV.numpy(), n_patches_B

    def prepared(
        self,
        features_BTC: np.ndarray,
        sessions: Sequence[str],
        n_bins_B: np.ndarray,
        smooth: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """Make the network's input of recordings; see `logits_batch` for the errors.

        Args:
            features_BTC: Float [B, T, C], features as they were recorded.
            sessions: Recording day of each trial.
            n_bins_B: int [B], bins of each trial.
            smooth: Smooth the features first; see `logits`.

        Returns:
            Features float32 [B, T, C] and day layers int64 [B] on the model's device, and patches
            int64 [B].
        """
        features_BTC = as_features(features_BTC)
        n_bins_B = np.asarray(check_list(n_bins_B, "n_bins_B", "an array of lengths"), np.int64)
        n_patches_B = self._check(features_BTC, sessions, n_bins_B, smooth)
        x_BTC = torch.from_numpy(np.ascontiguousarray(features_BTC)).to(self.device).float()
        if self.feature_subset is not None:
            x_BTC = x_BTC[..., self.feature_subset]
        # The frames of a trial depend on its own bins only: a GRU reads forwards, and 'valid'
        # smoothing looks ahead within the trial. Still zero the padding: a NaN there would spread
        # through products with zero, because 0 * NaN is NaN.
        inside_BT = (
            torch.arange(x_BTC.shape[1], device=self.device)
            < torch.from_numpy(n_bins_B).to(self.device)[:, None]
        )
        x_BTC = torch.where(inside_BT[..., None], x_BTC, 0.0)
        if smooth:
            x_BTC = self.smooth(x_BTC)
        if self.pads_last_patch:
            # A last patch is filled with zeros; smoothing has written over them.
            n_left_B = torch.from_numpy(n_bins_B - self._lost_bins(smooth)).to(self.device)
            t_T = torch.arange(x_BTC.shape[1], device=self.device)
            x_BTC = torch.where((t_T < n_left_B[:, None])[..., None], x_BTC, 0.0)
        day_B = torch.tensor([self.day(session) for session in sessions], device=self.device)
        return x_BTC, day_B, n_patches_B

    def smooth(self, x_BTC: torch.Tensor) -> torch.Tensor:
        """Smooth features [B, T, C] as at evaluation: padding 'valid', K - 1 bins fewer."""
        if not self.smoothing.smooth_data:
            return x_BTC.float()
        return smooth(
            x_BTC,
            self.smoothing.smooth_kernel_std,
            self.smoothing.smooth_kernel_size,
            padding="valid",
        )

    def _lost_bins(self, smooth: bool) -> int:
        return self.smoothing.lost_bins if smooth else 0

    def _check(
        self, features_BTC: np.ndarray, sessions: Sequence[str], n_bins_B: np.ndarray, smooth: bool
    ) -> Any:
        if features_BTC.ndim != 3 or features_BTC.shape[2] != self.n_features:
            shape = list(features_BTC.shape[1:])
            raise DataError(
                f"features of a trial are {shape}; [bins, {self.n_features}] are needed for this"
                " model"
            )
        if not len(features_BTC) == len(sessions) == len(n_bins_B):
            counts = (
                f"{len(features_BTC)} trials, {len(sessions)} sessions and {len(n_bins_B)} lengths"
            )
            raise DataError(f"{counts} were given; one of each per trial is needed")
        n_patches_B = self.n_patches(n_bins_B, smooth)
        for x_TC, session, n_bins, n_patches in zip(
            features_BTC, sessions, n_bins_B, n_patches_B, strict=True
        ):
            if n_patches < 1:
                raise DataError(
                    f"a trial of {session} has {n_bins} bins; too few for one frame of this model"
                )
            if n_bins > len(x_TC):
                raise DataError(
                    f"a trial of {session} is said to have {n_bins} bins; {len(x_TC)} were given"
                )
            if not np.isfinite(x_TC[:n_bins]).all():
                raise DataError(
                    f"a trial of {session} has features that are not finite; mend or leave out the"
                    " trial"
                )
        return n_patches_B

    def card(self) -> ModelCard:
        """Return the content of `model.json`."""
        config = self.network.config
        pads = {"pads": 1} if self.pads_last_patch else {}
        return ModelCard(
            kind=config.kind,
            sessions=list(self.sessions),
            n_features=self.n_features,
            feature_subset=self.feature_subset,
            patch={"size": config.patch_size, "stride": config.patch_stride, **pads},
            smoothing=self.smoothing,
            config=to_mapping(config),
            task=self.task,
            **{"inventory": RELEASE.to_json()} | self.conventions.to_json(),
        )


def look_ahead_frames(network: nn.Module) -> int | None:
    """Return the later frames that a frame depends on; None for the whole trial.

    A network without the attribute `look_ahead_frames` reads forwards only.
    """
    frames: int | None = getattr(network, "look_ahead_frames", 0)
    return frames


def look_ahead_text(look_ahead_ms: float | None) -> str:
    """Return `AcousticModel.look_ahead_ms` in words."""
    return "the whole trial" if look_ahead_ms is None else f"{look_ahead_ms:g} ms"


def check_causal(network: nn.Module) -> None:
    """Raise RunError for a model whose frames depend on later frames: it cannot be stepped."""
    if look_ahead_frames(network) != 0:
        raise RunError(
            "a frame of this model depends on later frames, so it can be neither stepped live nor"
            " exported",
            fix="train a causal one (model.attention=causal)",
        )


def as_features(features: Any) -> np.ndarray:
    """Return features that a caller gave as an array of numbers.

    Raises DataError for anything that cannot be one.
    """
    if isinstance(features, torch.Tensor):
        features = features.detach().cpu()
    try:
        array = np.asarray(features)
    except ValueError:  # rows of different lengths
        raise DataError("features are no array; rows of equal length are needed") from None
    if array.dtype.kind not in "fiub":
        raise DataError(f"features are of type {array.dtype}; an array of numbers is needed")
    return array


def day_of(session: str, sessions: tuple[str, ...]) -> tuple[str, int]:
    """Return a session's name and the number of its day layer; `latest` is the last session.

    Raises RunError for an unknown session.
    """
    if not isinstance(session, str):
        raise wrong_type("session", session, "a text")
    if session == "latest":
        session = sessions[-1]
    if session not in sessions:
        problem = f"the model knows no session {session!r}; {nearest(session, sessions)}"
        raise RunError(problem, fix="adapt the model to this day, or name a known session")
    return session, sessions.index(session)


def save_model(model: AcousticModel, run_dir: str | Path) -> str:
    """Write `model.json` and `model.safetensors` into a run directory.

    Each file replaces the one before as a whole.

    Returns:
        The checksum of the weights.

    Raises:
        RunError: If the directory cannot be written (a full disk).
    """
    check_type(model, AcousticModel, "model", "an AcousticModel")
    run_dir = as_path(run_dir, "run_dir")
    card = model.card().to_json()
    atomic_write(run_dir / CARD, card)
    return write_tensors(
        run_dir / "model.safetensors",
        model.network.state_dict(),
        {"format": "pt", CARD: card.decode()},
    )


def load_model(
    run_dir: str | Path, device: str | torch.device = "cpu", task: str = CTC
) -> AcousticModel:
    """Read the best model of a run directory.

    Args:
        run_dir: Directory that `cortext train` wrote.
        device: Device for the weights.
        task: Name of a task whose models are read besides `ctc`.

    Raises:
        RunError: For a directory without a model, a model of another task, a broken or foreign
            file, weights that do not fit or that are not finite, or a `model.json` that was
            changed after the weights were written.
    """
    run_dir = as_path(run_dir, "run")
    check_type(device, (str, torch.device), "device", "a device such as 'cpu'")
    card = read_card(run_dir / CARD)
    if card.task not in (CTC, task):
        problem = f"a run of task {card.task!r}; a run of phonemes (task {CTC!r}) is needed"
        raise RunError(
            problem, where=run_dir, fix=f"open it with load_model(run, task={card.task!r})"
        )
    path = run_dir / "model.safetensors"
    try:
        weights, metadata, _ = read_tensors(path)
        network = network_of(card, weights, path)
        network.to(device)
    except FileNotFoundError:
        raise RunError(
            "the run has no model weights", where=path, fix="train it, or copy the file again"
        ) from None
    except ConfigError as error:
        raise RunError(error.what, where=run_dir / CARD, fix=error.fix) from None
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise RunError(
            f"the model cannot be put on {device}: {str(error).splitlines()[0]}", where=run_dir
        ) from None
    model = AcousticModel.of(card, network)
    if (needed := model.card().patch) != card.patch:
        problem = f"patch is {card.patch}; its section config needs {needed}"
        raise RunError(problem, where=run_dir / CARD, fix="copy the file again")
    # Last: what does not fit the weights has messages that say more.
    check_unchanged(run_dir / CARD, metadata.get(CARD))
    return model


def network_of(card: ModelCard, weights: dict[str, torch.Tensor], path: Path) -> nn.Module:
    """Return the network that a card describes, with its weights.

    Args:
        card: Description of the model.
        weights: Tensors by name.
        path: File of the weights, for messages.

    Raises:
        RunError: For weights that do not fit or that are not finite.
        ConfigError: For a network that cannot be built.
    """
    check_finite(weights, path)
    config = model_config(card.config)
    sizes = {
        "n_features": card.n_features if card.feature_subset is None else len(card.feature_subset),
        "n_days": len(card.sessions),
        "n_classes": len(card.conventions.inventory),
    }
    # Check the shapes before taking memory: model.json may promise a model of any size.
    if (empty := empty_model(config, **sizes)) is not None:
        _check_shapes(empty, weights, path)
    network = build_model(config, **sizes)
    _check_shapes(network, weights, path)
    network.load_state_dict(weights)
    return network


def _check_shapes(network: nn.Module, weights: dict[str, torch.Tensor], path: Path) -> None:
    """Raise RunError for the first tensor that does not fit model.json."""
    expected = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            problem = (
                f"{name} is {shapes.get(name, 'absent')}; model.json needs"
                f" {expected.get(name, 'no such tensor')}"
            )
            raise RunError(
                problem, where=path, fix="the two files are not of one model; copy both again"
            )
