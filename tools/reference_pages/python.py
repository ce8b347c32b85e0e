"""The reference of the Python interface: an overview, and pages of each package."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import griffe

from reference_pages.markdown import code, front, table

INDEX = "reference/python.md"
SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Part:
    """A page: its sentence, and its names. `cortext.text.*` stands for all that the package exports."""

    text: str
    names: tuple[str, ...]


PARTS: dict[str, dict[str, Part]] = {
    "cortext": {
        "Data": Part("Read, check, write and pack recordings.", ("cortext.data.*",)),
        "Text": Part(
            "Normalise sentences, look up pronunciations, and count errors.",
            (
                "cortext.text.*",
                "cortext.text.prose.sentences",
                "cortext.text.prose.Report",
            ),
        ),
        "Features and models": Part(
            "Smooth and augment features; build, load, save and extend acoustic models.",
            (
                "cortext.features.*",
                "cortext.data.scaling.RollingZScore",
                "cortext.models.*",
                "cortext.models.inputs.DayLayers",
                "cortext.models.inputs.InputNetworkConfig",
                "cortext.models.layers.gru",
                "cortext.models.triple_gru.NoiseModel",
                "cortext.models.triple_gru.CleanSpeechModel",
            ),
        ),
        "Training": Part(
            "Train models, watch a training, and register losses and tasks of your own.",
            (
                "cortext.training.*",
                "cortext.training.loss.ctc_loss",
                "cortext.training.setup.new_model",
                "cortext.plugins.load_plugin",
            ),
        ),
        "Decoding": Part(
            "Turn logits into text with a word search, one frame or one utterance at a time.",
            (
                "cortext.decoding.*",
                "cortext.decoding.options.LLMOptions",
                "cortext.decoding.saved.to_log_probs",
                "cortext.decoding.fake.fake_log_probs",
                "cortext.evaluation.decoder_options.options_for",
            ),
        ),
        "Language models": Part("Build and query n-gram models.", ("cortext.decoding.ngram.*",)),
        "Evaluation": Part(
            "Decode a split, measure error rates, and fit decoder options.",
            (
                "cortext.evaluation.*",
                "cortext.evaluation.decoder_files.DecoderFiles",
                "cortext.evaluation.fit.search.Fit",
                "cortext.evaluation.fit.search.fit_options",
                "cortext.evaluation.redecode.decode_evaluation",
                "cortext.evaluation.settings.LargeModelFiles",
                "cortext.evaluation.settings.SearchKeywords",
                "cortext.evaluation.settings.SearchSettings",
            ),
        ),
        "Errors": Part(
            "Catch what can go wrong: every error that an input can cause is a `CortextError`.",
            (
                "cortext.errors.CortextError",
                "cortext.errors.ConfigError",
                "cortext.errors.DataError",
                "cortext.errors.TextError",
                "cortext.errors.LanguageModelError",
                "cortext.errors.DecodingError",
                "cortext.errors.RunError",
                "cortext.errors.LiveError",
                "cortext.errors.CloudError",
                "cortext.errors.MissingLibrary",
                "cortext.errors.WrongType",
                "cortext.errors.Interrupted",
                "cortext.errors.plain",
            ),
        ),
    },
    "cortext_checks": {
        "Checks": Part(
            "Check models, losses, augmentations and tasks of your own.", ("cortext_checks.*",)
        ),
    },
    "cortext_data": {
        "Simulation": Part(
            "Simulate recordings of attempted speech, and make the sentences for them.",
            (
                "cortext_data.*",
                "cortext_data.simulate.*",
                "cortext_data.simulate.sentences.splits",
                "cortext_data.simulate.sentences.handwritten",
            ),
        ),
    },
    "cortext_lm": {
        "Large models and ensembles": Part(
            "Score text with large language models; combine the sentences, lattices or posteriors"
            " of several runs.",
            ("cortext_lm.llm.large_model.LLM", "cortext_lm.ensemble.*"),
        ),
    },
    "cortext_live": {
        "Live decoding": Part(
            "Decode features while they arrive, adapt to a new day, keep a log of daily use, learn"
            " from it, and speak text aloud.",
            (
                "cortext_live.*",
                "cortext_live.core.pipeline.Pipeline",
                "cortext_live.core.pipeline.Update",
                "cortext_live.core.acoustic_stream.PipelineOptions",
                "cortext_live.core.acoustic_stream.EndpointOptions",
                "cortext_live.core.decoder.with_llm",
                "cortext_live.adapt.AdaptSummary",
                "cortext_live.adapt.adapt",
                "cortext_live.recalibration.adapting.adapt_unlabelled",
                "cortext_live.recalibration.learner.Learner",
                "cortext_live.recalibration.state.LearnerStore",
                "cortext_live.recalibration.evaluation.evaluate_online",
                "cortext_live.casing.*",
                "cortext_live.casing.train.train_case",
                "cortext_live.casing.train.CasingSettings",
                "cortext_live.usage.writer.UsageLog",
                "cortext_live.usage.writer.UtteranceRecord",
                "cortext_live.usage.writer.session_of_today",
                "cortext_live.usage.statistics.read_use",
                "cortext_live.voices.*",
            ),
        ),
    },
    "cortext_speechllm": {
        "Speech LLM": Part(
            "Train and use an audio language model that reads neural activity.",
            (
                "cortext_speechllm.*",
                "cortext_speechllm.audio_llm.*",
                "cortext_speechllm.memory.check_gpu_memory",
                "cortext_speechllm.targets.*",
            ),
        ),
    },
    "cortext_tpu": {
        "TensorFlow": Part(
            "Train with TensorFlow, and convert models to Keras and back.",
            (
                "cortext_tpu.keras_tf.convert.from_torch",
                "cortext_tpu.keras_tf.convert.to_torch",
                "cortext_tpu.keras_tf.models.keras_model",
                "cortext_tpu.keras_tf.pipeline.datasets",
                "cortext_tpu.keras_tf.strategy.choose_strategy",
            ),
        ),
    },
    "cortext_tune": {
        "Tuning and cloud": Part(
            "Search for good settings of the training and of the decoder, and rent a machine to"
            " train on.",
            (
                "cortext_tune.*",
                "cortext_tune.decoder.material.tuning_parts",
                "cortext_tune.cloud.*",
            ),
        ),
    },
    "cortext_published": {
        "Published data": Part(
            "Check published data against published numbers, and decode for the FALCON challenge.",
            (
                "cortext_published.verification.*",
                "cortext_published.copy_task.import_copy_task",
                "cortext_published.falcon.FalconDecoder",
            ),
        ),
    },
}
"""The pages of each package. `cortext_bench` has commands alone; the core asks for `cortext_cuda`."""


def packages() -> griffe.ModulesCollection:
    """Return the source of all packages as griffe reads it, which takes seconds."""
    loaded = griffe.ModulesCollection()
    for path in sorted(SOURCE.iterdir()):
        if (path / "__init__.py").is_file():
            griffe.load(path.name, search_paths=[SOURCE], modules_collection=loaded)
    return loaded


def pages(modules: griffe.ModulesCollection | None = None) -> dict[str, str]:
    """Return the pages, Markdown by address; mkdocstrings writes what `:::` names.

    `modules` is what `packages` returns; by default it is called.
    """
    modules = modules or packages()
    parts = {title: part for parts in PARTS.values() for title, part in parts.items()}
    documented = {title: _names(modules, part) for title, part in parts.items()}
    written = {INDEX: _index(modules, documented)}
    for title, names in documented.items():
        text = front(title) + f"# {title}\n\n{parts[title].text}\n\n"
        written[page_of(title)] = text + "".join(f"::: {name}\n\n" for name in names)
    return written


def nav() -> list[Any]:
    """Return the pages as mkdocs' navigation lists them, those of a package together."""
    groups = [
        {package: [{title: page_of(title)} for title in parts]} for package, parts in PARTS.items()
    ]
    return [INDEX, *groups]


def page_of(title: str) -> str:
    """Return the address of a part's page."""
    return f"reference/python/{title.lower().replace(' ', '-')}.md"


def _names(modules: griffe.ModulesCollection, part: Part) -> list[str]:
    """Return a page's names; what two packages export is under the first."""
    names: dict[str, str] = {}
    for name in part.names:
        module = name.removesuffix(".*")
        listed = [f"{module}.{each}" for each in _exports(modules, module)]
        for each in listed if name.endswith(".*") else [name]:
            if modules[each].is_module:  # its module has the same name
                each += "." + each.rpartition(".")[2]
            names.setdefault(modules[each].canonical_path, each)
    return list(names.values())


def _exports(modules: griffe.ModulesCollection, module: str) -> list[str]:
    return sorted(map(str, modules[module].exports or ()))


def _index(modules: griffe.ModulesCollection, documented: dict[str, list[str]]) -> str:
    homes = {modules[name].canonical_path for names in documented.values() for name in names}
    short = [f"cortext.{name}" for name in _exports(modules, "cortext")]
    assert all(modules[name].canonical_path in homes for name in short)
    text = (
        front("Python")
        + (
            "# Python interface\n\n"
            "Find the class or function for a task; its page lists every argument with its type and"
            " its default. [Use it from Python](../guides/python.md) shows them at work.\n\n"
            "## Short names\n\n`import cortext` gives these names. Each is loaded when it is first"
            " used.\n\n"
        )
        + _summary(modules, short)
    )
    for package, parts in PARTS.items():
        text += f"## {package}\n\n{_first_lines(modules[package])}\n\n"
        for title, part in parts.items():
            link = page_of(title).removeprefix("reference/")
            text += f"### {title}\n\n{part.text} [Read the page]({link}).\n\n"
            text += _summary(modules, documented[title])
    return text


def _summary(modules: griffe.ModulesCollection, names: list[str]) -> str:
    rows = []
    for name in names:
        found = modules[name]
        rows.append((f"[{code(name)}][{found.canonical_path}]", _first_lines(found)))
    return table(("Name", "Purpose"), rows)


def _first_lines(documented: Any) -> str:
    """Return the first paragraph of a docstring."""
    return documented.docstring.value.split("\n\n")[0] if documented.docstring else ""
