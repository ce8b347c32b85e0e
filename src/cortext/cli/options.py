"""Options that several commands share, and options made of the fields of settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ParameterInfo

from cortext.errors import ConfigError
from cortext.evaluation.settings import LargeModelFiles, SearchSettings
from cortext.settings import Setting

Run = Annotated[Path, typer.Argument(help="Run directory of a trained model.")]
Data = Annotated[Path, typer.Option(help="Directory of session files, or a packed one.")]
Participant = Annotated[
    str | None,
    typer.Option(
        help="Whose model, where several trained together; without it that of the recordings."
    ),
]
ORDERS = "release, lm, characters, handwriting, or a JSON file of your own tokens"
"""Names of inventories, for the help of options that take one."""
KINDS = "logits, log-probs, probabilities, negated, log10-probs or log2-probs"
"""Kinds of numbers in a file (`decoding.log_probs.SCORES`), for the help of `--scores`."""


def named_data(given: list[str]) -> Path | dict[str, Path]:
    """Return the data of one participant, or those of several by name.

    A directory without a name gives that of the participant in its `cortext.json`, or its own.
    """
    from cortext.data import open_dataset

    named = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or Path(text).exists():
            if len(given) == 1:
                return Path(text)
            stated = open_dataset(text).conventions.participant
            name, folder = stated or Path(text).resolve().name, text
        if not folder:
            raise ConfigError(f"--data {text} names no directory", fix="give NAME=DIR")
        if name in named:
            problem = f"--data names two participants {name!r}"
            raise ConfigError(problem, fix="give each a name: --data A=DIR --data B=DIR")
        named[name] = Path(folder)
    return named


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with an option for each `Setting` that it takes.

    A parameter whose type is a dataclass becomes one option for each of its fields with a
    `Setting`; the command gets the dataclass. Typer reads the options from the signature. A
    dataclass of the command line alone may have fields with `typer.Option`, too, which knows more:
    other names, and variables of the environment.
    """
    hints = get_type_hints(command, include_extras=True)
    settings: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in settings:
            parameters += _options(settings[name])
        else:
            parameters.append(_option(name, hints[name], parameter.default))

    @wraps(command)
    def call(**given: Any) -> Any:
        for name, cls in settings.items():
            values = {option.name: given.pop(option.name) for option in _options(cls)}
            given[name] = cls(**values)
        return command(**given)

    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def with_settings(**settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give Typer these settings for the command that is decorated, such as its class."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        command.typer_settings = settings  # type: ignore[attr-defined]
        return command

    return add


def command_settings(command: Callable[..., Any]) -> dict[str, Any]:
    """Return what `with_settings` gave the command."""
    settings: dict[str, Any] = getattr(command, "typer_settings", {})
    return settings


def _options(cls: Any) -> list[Parameter]:
    hints = get_type_hints(cls, include_extras=True)
    defaults = {field.name: _default(field) for field in fields(cls)}
    return [
        _option(name, hints[name], default)
        for name, default in defaults.items()
        if any(isinstance(each, Setting | ParameterInfo) for each in _metadata(hints[name]))
    ]


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return Parameter.empty if field.default is MISSING else field.default


def _option(name: str, hint: Any, default: Any) -> Parameter:
    """Return a parameter as Typer reads it; one without a `Setting` stays as it is."""
    setting = next((each for each in _metadata(hint) if isinstance(each, Setting)), None)
    if setting is not None:
        # Without its name a switch would get a second form, `--no-...`.
        flag = f"--{name.replace('_', '-')}"
        if default is True:  # which alone can switch this one off
            flag += f"/--no-{flag[2:]}"
        shared: dict[str, Any] = {"help": setting.help, "metavar": setting.metavar}
        shared |= {"min": setting.minimum, "max": setting.maximum}
        info = typer.Argument(**shared) if setting.argument else typer.Option(flag, **shared)
        hint = Annotated[setting.kind or hint.__origin__, info]
    # Keyword-only parameters may stand in any order, with defaults and without.
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _metadata(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


@dataclass(frozen=True)
class LargeModelSettings:
    """A large language model, as the command line names it.

    Raises:
        ConfigError: For an option that says nothing without `--llm`, and for an empty name.
    """

    llm: Annotated[
        str | None,
        Setting(
            help="Large language model: a directory, or its name at Hugging Face.", metavar="MODEL"
        ),
    ] = None
    llm_lora: Annotated[
        Path | None, Setting(help="LoRA adapter for the large model.", metavar="DIR")
    ] = None
    llm_device: Annotated[
        str, Setting(help="Where the large model runs: auto, cpu, cuda or cuda:N.")
    ] = "auto"

    def __post_init__(self) -> None:
        if self.llm is None and self.llm_lora is not None:
            fix = "name the model, too, that it was trained for"
            raise ConfigError("--llm-lora is given without --llm", fix=fix)
        if self.llm is None and self.llm_device != "auto":
            fix = "name the large model that is to run there"
            raise ConfigError("--llm-device is given without --llm", fix=fix)
        if self.llm is not None and not self.llm.strip():
            raise ConfigError("--llm is empty", fix="name a directory, or a model of Hugging Face")

    @property
    def files(self) -> LargeModelFiles | None:
        """The large model, or None where none is named."""
        return (
            None if self.llm is None else LargeModelFiles(self.llm, self.llm_lora, self.llm_device)
        )


@dataclass(frozen=True)
class PromptedModelSettings(LargeModelSettings):
    """A large language model and the text that it reads first."""

    context: Annotated[
        str,
        Setting(help="What was said before, for the large model to read first.", metavar="TEXT"),
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.llm is None and self.context:
            fix = "name the large model that is to read it"
            raise ConfigError("--context is given without --llm", fix=fix)
        try:
            self.context.encode()
        except UnicodeEncodeError as error:
            problem = f"--context is no UTF-8 text from character {error.start} on"
            raise ConfigError(problem, fix="write it anew") from None


def check_ray(
    ray: str | None,
    gpus_per_worker: float = 0.0,
    threads: int | None = None,
    llm_device: str = "auto",
) -> None:
    """Raise ConfigError for options that a cluster, or its absence, would pass over."""
    if ray is None and gpus_per_worker:
        raise ConfigError(
            "--gpus-per-worker is given without --ray", fix="name a cluster, or `--ray local`"
        )
    if ray is not None and threads is not None:
        raise ConfigError(
            "--threads is given with --ray, whose tasks have one each", fix="leave out one of them"
        )
    if ray is not None and llm_device.startswith("cuda:"):
        problem = (
            f"--llm-device is {llm_device}, and a task on Ray sees only the GPUs that it is given"
        )
        raise ConfigError(problem, fix="leave it out, and give --gpus-per-worker")


def searching(
    search: SearchSettings, lm: Path | None, large: PromptedModelSettings
) -> SearchSettings:
    """Return the search with its language models, where their options agree."""
    check_ray(search.ray, search.gpus_per_worker, search.threads, large.llm_device)
    return replace(search, lm=lm, llm=large.files, context=large.context)
