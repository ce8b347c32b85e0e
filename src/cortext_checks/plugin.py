"""Checks of all that a user's file registers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from cortext.errors import ConfigError, first_line
from cortext.features.augment import AUGMENTATIONS
from cortext.models import MODELS
from cortext.models.card import Smoothing
from cortext.plugins import load_plugin, place
from cortext.training.backend import DeviceSpec
from cortext.training.config import TASKS, TrainConfig, read_train_config
from cortext.training.loss import LOSSES
from cortext.training.task import Task
from cortext_checks.augmentation import check_augmentation
from cortext_checks.loss import check_loss
from cortext_checks.made_up import SMALL
from cortext_checks.model import check_model
from cortext_checks.network import FORWARD
from cortext_checks.report import CheckReport, CheckResult, Named, Report, examine, skip


def check_plugin(
    path: str | Path,
    config: str | Path | None = None,
    *,
    onnx: bool = True,
    report: Report | None = None,
) -> CheckReport:
    """Check the models, losses, augmentations and tasks that a file registers, on made-up data.

    Args:
        path: The file.
        config: A configuration, whose settings the checks use; None for each class's defaults.
        onnx: Export models to ONNX, which takes seconds.
        report: Called with each result when it is there.

    Returns:
        The results, a line each.

    Raises:
        ConfigError: For a file that cannot be loaded or that registers nothing, and for a
            configuration that cannot be read.
    """
    module = load_plugin(path)
    settings = None if config is None else read_train_config(config)
    registered = {
        registry.noun: {kind: cls for kind, cls in registry.items() if _is_of(cls, module)}
        for registry in (MODELS, LOSSES, AUGMENTATIONS, TASKS)
    }
    others = _not_registered(module, registered)
    if not any(registered.values()):
        what = "the file registers no model, loss, augmentation or task"
        hints = [f"{check.subject}: {check.found}" for check in others]
        fix = hints[0] if hints else "write @register(...) before a class"
        raise ConfigError(what, where=path, fix=fix)
    found = list(others)
    if report is not None:
        for check in others:
            report(check)
    for noun, classes in registered.items():
        for kind, cls in classes.items():
            found += _examined(noun, kind, cls, settings, found, onnx, report)
    return CheckReport(tuple(found))


def _examined(
    noun: str,
    kind: str,
    cls: Any,
    settings: TrainConfig | None,
    before: Sequence[CheckResult],
    onnx: bool,
    report: Report | None,
) -> Sequence[CheckResult]:
    """Check one class; `before` are the results of those before it."""
    subject = f"{noun} {kind}"
    if noun == TASKS.noun:
        return examine(subject, _task_checks(cls, kind, settings), [cls], report=report)
    own = _used_settings(settings).get((noun, kind))
    if own is None:
        try:
            own = cls.Config()
        except Exception as error:  # a user's own dataclass may refuse its defaults
            refused = f"give --config, because its defaults are refused: {first_line(error)}"
            return examine(subject, [("settings", lambda: skip(refused))], report=report)
    if noun == AUGMENTATIONS.noun:
        return check_augmentation(own, report)
    if noun == LOSSES.noun:
        model = _model_for(kind, cls, settings)
        if spoilt := _spoilt(before, f"{MODELS.noun} {model.kind}"):
            return examine(subject, [("all", lambda: skip(spoilt))], report=report)
        return check_loss(own, model, report)
    loss = smoothing = None
    if settings is not None and settings.model is own:
        loss, smooth = settings.loss, settings.dataset.data_transforms
        smoothing = Smoothing(
            smooth.smooth_data, smooth.smooth_kernel_std, smooth.smooth_kernel_size
        )
    return check_model(own, loss=loss, smoothing=smoothing, onnx=onnx, report=report).checks


def _is_of(cls: type, module: ModuleType) -> bool:
    """Tell whether a file has defined a class."""
    return cls.__module__ == module.__name__


def _used_settings(settings: TrainConfig | None) -> dict[tuple[str, str], Any]:
    """Return the settings of a configuration by kind of class and name."""
    if settings is None:
        return {}
    used = {(MODELS.noun, settings.model.kind): settings.model}
    if settings.loss is not None:
        used[LOSSES.noun, settings.loss.kind] = settings.loss
    for augmentation in settings.dataset.augmentations:
        used.setdefault((AUGMENTATIONS.noun, augmentation.kind), augmentation)
    return used


def _model_for(kind: str, cls: Any, settings: TrainConfig | None) -> Any:
    """Return the settings of a model that a loss trains.

    It is the model of a configuration with this loss, one that names the loss as its own, one that
    the loss names, or a small GRU.
    """
    if settings is not None and settings.loss is not None and settings.loss.kind == kind:
        return settings.model
    naming = [name for name, each in MODELS.items() if getattr(each, "default_loss", "") == kind]
    name = (naming or [*getattr(cls, "models", ()), "gru"])[0]
    return SMALL.get(name) or MODELS[name].Config()


def _spoilt(found: Sequence[CheckResult], subject: str) -> str | None:
    """Return why no loss can be checked with a model; None if its forward pass is right."""
    for check in found:
        needed = check.name in ("builds", *FORWARD)
        if check.subject == subject and check.status == "FAIL" and needed:
            return f"its {subject} failed: {check.name}"
    return None


def _task_checks(cls: Any, kind: str, settings: TrainConfig | None) -> list[Named]:
    def interface() -> str:
        where = place(cls, "__init__")
        if not (isinstance(cls, type) and issubclass(cls, Task)):
            what = "the class is no cortext.training.Task"
            raise ConfigError(what, where=where, fix="make it a subclass")
        if absent := sorted(getattr(cls, "__abstractmethods__", ())):
            raise ConfigError(f"it lacks {' and '.join(absent)}", where=where)
        if "val_loss" not in cls.metrics:
            what = f"metrics are {', '.join(cls.metrics) or 'none'}"
            raise ConfigError(what, where=where, fix="add val_loss, which decides ties")
        return f"metrics {', '.join(cls.metrics)}"

    def accepts() -> str:
        if settings is None or settings.task_name != kind:
            return skip("no configuration with this task was given")
        cls(settings, DeviceSpec(), None).check()
        return "the configuration is accepted"

    untried = "model, loss and validation of a task need its data; train two batches"
    return [("interface", interface), ("check", accepts), ("training", lambda: skip(untried))]


def _not_registered(
    module: ModuleType, registered: Mapping[str, Mapping[str, Any]]
) -> list[CheckResult]:
    """Return a line for each class of a file that has a `Config` and that nothing registers."""
    known = [cls for classes in registered.values() for cls in classes.values()]
    return [
        CheckResult(
            f"class {name}",
            "all",
            "not checked",
            f"nothing registers it; write {_decorator(cls)} before it",
        )
        for name, cls in vars(module).items()
        if inspect.isclass(cls)
        and _is_of(cls, module)
        and hasattr(cls, "Config")
        and not any(issubclass(other, cls) for other in known)
    ]


def _decorator(cls: type) -> str:
    if issubclass(cls, Task):
        return "@register_task(...)"
    if hasattr(cls, "forward"):
        return "@register(...)"
    return "@register_loss(...) or @register_augmentation(...)"
