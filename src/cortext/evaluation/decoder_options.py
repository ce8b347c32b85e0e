"""The decoder options that a command uses: those asked for, those of the run, or the defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cortext.arguments import as_path
from cortext.config import load_config, read_mapping
from cortext.decoding.options import DecoderOptions, LLMOptions
from cortext.errors import ConfigError
from cortext.evaluation.fit.fitted_file import weights_checksum
from cortext.evaluation.fit.options import FittedOptions, TrialName
from cortext.evaluation.settings import Options

DEFAULT = "default"
"""Name that stands for the default options where a file or run could stand."""
FIT = "`cortext evaluate --fit` fits them"


@dataclass(frozen=True)
class ChosenOptions:
    """Decoder options for a command, and where they come from.

    Attributes:
        options: Options for trials that no fit has seen.
        note: A line for the user.
        fitted: The fit that the options come from; None for others.
    """

    options: DecoderOptions
    note: str
    fitted: FittedOptions | None = None

    @classmethod
    def now(
        cls, fitted: FittedOptions, run: str | Path, before: str | None, llm: LLMOptions
    ) -> ChosenOptions:
        """Return options that have just been fitted to a run.

        Args:
            fitted: The fit.
            run: Run directory.
            before: Description of the fit that it replaces; None where there was none.
            llm: Settings of the large model.
        """
        note = f"{fitted.about}, kept in {Path(run) / FittedOptions.FILE}"
        if before is not None:
            note += f", replacing those {before}"
        return cls(replace(fitted.options, llm=llm), _note(note), fitted)

    def without(self, trial: TrialName) -> DecoderOptions | None:
        """Return options that were fitted without a trial; None for one that no fit has seen."""
        seen = None if self.fitted is None else self.fitted.without(trial)
        return None if seen is None else replace(seen, llm=self.options.llm)


def options_for(
    run: str | Path | None, lm: str | Path | None, options: Options = None
) -> tuple[DecoderOptions, str]:
    """Return decoder options for a run and a language model, and a line that says where from.

    Arguments and errors are those of `choose_options`, which also knows the options of single
    trials.
    """
    chosen = choose_options(run, lm, options)
    return chosen.options, chosen.note


def choose_options(
    run: str | Path | None, lm: str | Path | None, options: Options = None
) -> ChosenOptions:
    """Return decoder options for a run and a language model.

    Args:
        run: Run directory; None without one.
        lm: Language-model directory; None checks the options alone.
        options: None: the options fitted to the run, if they were fitted with this language model,
            else the defaults. Otherwise `DecoderOptions`, a mapping of their fields, a YAML file of
            them (or a `decoder.yaml`), a run directory, whose fitted options are used, or
            `default`. A mapping or file that has only a section `llm` leaves the search as
            None does.

    Raises:
        ConfigError: For a file that is missing or damaged, and a run without fitted options.
        DecodingError: For an unknown option and values out of bounds.
    """
    run = None if run is None else as_path(run, "run")
    lm = None if lm is None else as_path(lm, "lm")
    if isinstance(options, DecoderOptions):
        return ChosenOptions(options, _note("as given"))
    if isinstance(options, str | Path):
        path = Path(options)
        if str(path) == DEFAULT:
            return ChosenOptions(DecoderOptions(), _note("the defaults, as asked for"))
        if path.is_dir():
            return _asked_for(_fitted_of_run(path), path, lm)
        mapping = read_mapping(path)
        # Only a fit names the language model that it was made with; plain options do not.
        if "language_model" in mapping:
            return _asked_for(FittedOptions.read_file(path), path, lm)
        given = load_config(path, DecoderOptions)
        if mapping and mapping.keys() != {"llm"}:
            return ChosenOptions(given, _note(f"those of {path}"))
    else:
        given = DecoderOptions.of(options)
        mapping = dict(options or {})
        if mapping and mapping.keys() != {"llm"}:
            return ChosenOptions(given, _note("as given"))
    chosen = _options_of_run(run, lm)
    return replace(chosen, options=replace(chosen.options, llm=given.llm))


def _note(text: str) -> str:
    return f"decoder options: {text}"


def _fitted_of_run(run: Path) -> FittedOptions:
    fitted = FittedOptions.read(run)
    if fitted is None:
        raise ConfigError(
            f"no {FittedOptions.FILE}: no decoder options were fitted to it", where=run, fix=FIT
        )
    return fitted


def _asked_for(fitted: FittedOptions, source: Path, lm: str | Path | None) -> ChosenOptions:
    """Return fitted options that the user has named, whatever the language model is."""
    note = f"those of {source}, {fitted.about}"
    if lm is not None and not fitted.language_model.is_same(lm):
        note += f", with another language model ({fitted.language_model.path})"
    return ChosenOptions(fitted.options, _note(note), fitted)


def _options_of_run(run: str | Path | None, lm: str | Path | None) -> ChosenOptions:
    if run is None or lm is None:
        return ChosenOptions(DecoderOptions(), _note("the defaults"))
    fitted = FittedOptions.read(run)
    if fitted is None:
        return ChosenOptions(
            DecoderOptions(), _note(f"the defaults; none were fitted to {run} ({FIT})")
        )
    if not fitted.language_model.is_same(lm):
        with_other = (
            f"the defaults; those in {run} were fitted with another language model"
            f" ({fitted.language_model.path})"
        )
        return ChosenOptions(DecoderOptions(), _note(with_other))
    note = f"those of {run}, {fitted.about}"
    if fitted.source is not None:
        note += f", taken over from {fitted.source}"
    elif fitted.weights is not None and weights_checksum(run) not in (None, fitted.weights):
        note += "; its weights have changed since"
    return ChosenOptions(fitted.options, _note(note), fitted)
