"""Checks of a user's own classes before a run is trained, which take at most some seconds."""

from __future__ import annotations

import copy
import logging
import time
from typing import Any

from cortext.arguments import check_type
from cortext.errors import ConfigError, first_line
from cortext.features.augment import AUGMENTATIONS
from cortext.models import AcousticModel
from cortext.models.card import CTC
from cortext.models.precision import full_float32
from cortext.plugins import is_own
from cortext.processes import threads
from cortext.training.config import TrainConfig
from cortext.training.loss import build_loss, loss_kind
from cortext_checks.augmentation import AUGMENTATION_CHECKS, AugmentationChecks
from cortext_checks.loss import CHEAP_CHECKS, LossChecks
from cortext_checks.made_up import separate_random_numbers
from cortext_checks.network import FORWARD, LEARNING, NetworkChecks
from cortext_checks.report import CheckResult, examine, methods

SECONDS = 3.0
"""Processor time for all checks; none begins later."""
LARGE = 30_000_000
"""Parameters from which on trials have few frames, so that a check takes tenths of a second."""
FRAMES = {False: (15, 9, 4), True: (4, 3, 2)}
"""Frames of the trials of a model that is not, or is, large."""
WARNED = ("unused parameters", "tensors")
"""Checks whose failure does not stop a training."""
TOLERANCE = 1e-3
"""Largest difference between logits that should be equal; mistakes make larger ones."""


def examine_first(config: TrainConfig, model: AcousticModel) -> list[CheckResult]:
    """Check a run's own model, loss and augmentations, and stop where one of them fails.

    Shipped classes are not checked. Neither the weights nor any random number of the run changes.

    Args:
        config: The configuration of the run.
        model: The model with its first weights, on the CPU.

    Returns:
        The results. A warning names parameters without a gradient, and tensors that no file gets.

    Raises:
        ConfigError: For the first check that fails.
    """
    check_type(config, TrainConfig, "config", "a TrainConfig")
    check_type(model, AcousticModel, "model", "an AcousticModel (load_model)")
    is_ctc = config.task_name == CTC
    loss = build_loss(config.loss, config.model.kind, model.inventory) if is_ctc else None
    found = list[CheckResult]()
    until_s = time.process_time() + SECONDS
    # On a busy machine several threads take many times as long for a small batch.
    with threads(1), separate_random_numbers(), full_float32():
        for augmentation in config.dataset.augmentations:
            cls = AUGMENTATIONS[augmentation.kind]
            if is_own(cls):
                made = AugmentationChecks(augmentation, model.n_features)
                checks = methods(made, *AUGMENTATION_CHECKS)
                found += examine(f"augmentation {augmentation.kind}", checks, [cls], until_s)
        if is_own(model.network) or (loss is not None and is_own(loss)):
            found += _of_network(config, model, loss, until_s)
    for check in found:
        if check.status == "FAIL" and check.name in WARNED:
            logging.getLogger(__name__).warning("%s: %s", check.subject, check.found)
        elif check.status == "not checked" and check.name != "GPU":
            logging.getLogger(__name__).warning(str(check))
        elif check.status == "FAIL":
            raise ConfigError(
                f"{check.subject}: {check.name}: {check.found}",
                fix="mend it (cortext check-plugin tells more), or train with --no-check",
            )
    return found


def _of_network(
    config: TrainConfig, model: AcousticModel, loss: Any, until_s: float
) -> list[CheckResult]:
    kind = config.model.kind
    shared: dict[int, Any] = {id(weights): weights for weights in model.network.parameters()}
    try:
        network = copy.deepcopy(model.network, shared)  # the weights are not copied
    # Anything may be raised by a user's own class that cannot be copied.
    except Exception as error:
        reason = f"it cannot be copied: {first_line(error)}"
        return [CheckResult(f"model {kind}", "shapes", "not checked", reason)]
    sizes = {
        "n_features": model.n_used_features,
        "n_days": len(model.sessions),
        "n_classes": len(model.inventory),
    }
    is_large = sum(parameter.numel() for parameter in network.parameters()) > LARGE
    try:
        checks = NetworkChecks(
            network,
            **sizes,
            loss=config.loss,
            inventory=model.inventory,
            frames=FRAMES[is_large],
            tolerance=TOLERANCE,
        )
        names = FORWARD if loss is None else (*FORWARD, *LEARNING, "tensors")
        blamed = [network] if loss is None else [network, loss]
        found = examine(f"model {kind}", methods(checks, *names), blamed, until_s)
        if loss is not None and is_own(loss) and all(check.status == "PASS" for check in found[:3]):
            named = methods(LossChecks(loss, network.eval(), **sizes), *CHEAP_CHECKS)
            found += examine(f"loss {loss_kind(config.loss, kind)}", named, blamed, until_s)
    finally:
        for parameter in network.parameters():
            parameter.grad = None
    return found
