"""The weights that a training starts from: `--init-from`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cortext.errors import RunError
from cortext.models import AcousticModel, load_model
from cortext.models.inputs import of_participant
from cortext.models.participants import participant_folder, read_participants, same_participant
from cortext.training.progress import say


def start_from(model: AcousticModel, run: Path, task: str) -> None:
    """Copy the weights of a run; day layers by session name.

    Of another participant's model copy the body alone.

    Args:
        model: The new model.
        run: The run to start from.
        task: Name of a task whose models may be started from, beside CTC.

    Raises:
        RunError: For weights that do not fit, and for a run on data of other conventions.
    """
    _copy(model, _source(model, run, task), run)


def _source(model: AcousticModel, run: Path, task: str) -> AcousticModel:
    """Return the model to start from.

    Of several participants it is that of the same one. For another participant it is any of them,
    because all have the same body.
    """
    sources = [
        load_model(participant_folder(run, name), task=task) for name in read_participants(run)
    ]
    for source in sources:
        if _known(model, source):
            return source
    return sources[0] if sources else load_model(run, task=task)


def _known(model: AcousticModel, source: AcousticModel) -> bool:
    """Tell whether the source is a model of the same participant and as many features."""
    if model.n_used_features != source.n_used_features:
        return False
    given, theirs = (each.conventions.participant for each in (model, source))
    return same_participant(given, model.sessions, theirs, source.sessions)


def _copy(model: AcousticModel, source: AcousticModel, where: Path) -> None:
    # The body may be another participant's.
    replace(model.conventions, participant=None).require(
        source.conventions,
        mine="the data",
        theirs="the run to start from",
        where=where,
        error=RunError,
        fix="start from a run on such data, or leave out --init-from",
    )
    n_features, n_source = model.n_used_features, source.n_used_features
    known = _known(model, source)
    reads_in = getattr(source.network, "read_in", None) is not None
    if reads_in and getattr(model.network, "read_in", None) is None:
        n_read = source.network.config.input_network.read_in
        problem = "the run to start from has a read-in layer, and the new model has none"
        raise RunError(problem, where=where, fix=f"set model.input_network.read_in={n_read}")
    body_alone = not known and reads_in
    if known and reads_in:
        say(f"{where}: its body, read-in and known day layers are taken over", True)
    elif body_alone:
        say(f"{where}: its body is taken over; read-in and day layers start afresh", True)
    elif n_features != n_source:
        raise RunError(
            f"the model reads {n_source} features, and the new one {n_features}",
            where=where,
            fix="start from a run on the same features, or leave out --init-from",
        )
    elif model.n_features == source.n_features and _features(model) != _features(source):
        raise RunError(
            "the model reads other features of the recordings than the new one",
            where=where,
            fix="set dataset.feature_subset as in its config.yaml, or leave out --init-from",
        )
    fix = "set the section model as in its config.yaml, or name another run"
    if changed := _changed_meaning(source.network.config, model.network.config, body_alone):
        raise RunError(changed, where=where, fix=fix)
    weights, new = source.network.state_dict(), model.network.state_dict()
    for name, tensor in new.items():
        if body_alone and of_participant(name):
            continue
        old = weights.get(name)
        skip = 1 if name.startswith("day_") else 0  # the number of days may differ
        if old is None or old.shape[skip:] != tensor.shape[skip:]:
            found = "absent" if old is None else list(old.shape)
            problem = f"{name} is {found}; {list(tensor.shape)} is needed to start from it"
            raise RunError(problem, where=where, fix=fix)
        if not skip:
            tensor.copy_(old)
            continue
        for day, session in enumerate(model.sessions):
            if known and session in source.sessions:
                tensor[day] = old[source.day(session)]
    for name in sorted(weights.keys() - new.keys()):
        if not (body_alone and of_participant(name)):
            raise RunError(f"the new model has no {name} to take over", where=where, fix=fix)


def _features(model: AcousticModel) -> list[int]:
    return model.feature_subset or list(range(model.n_features))


def _changed_meaning(source: Any, new: Any, body_alone: bool) -> str | None:
    """Return a setting under which weights of the same shapes compute something else, if any."""
    for name in ("n_heads", "patch_size", "input_network.day_layer"):
        before, now = source, new
        for part in name.split("."):
            before, now = (getattr(config, part, None) for config in (before, now))
        of_body = not name.startswith("input_network")
        if before != now and None not in (before, now) and (of_body or not body_alone):
            return f"its model.{name} is {before!r}, and the new one's {now!r}"
    return None
