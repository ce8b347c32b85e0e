"""The reference of the Python interface: an overview, and a page for each part of the packages."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import griffe

from reference_pages.markdown import code, front, table

INDEX = "reference/python.md"


@dataclass(frozen=True)
class Part:
    """A page: its sentence, and its names. `cortext.text.*` stands for all that the package exports."""

    text: str
    names: tuple[str, ...]


PARTS: dict[str, Part] = {
    "Data": Part(
        "Read, check, simulate, write and pack recordings.",
        (
            "cortext.data.*",
            "cortext_data.simulate.*",
            "cortext_data.simulate.sentences.splits",
            "cortext_data.simulate.sentences.handwritten",
        ),
    ),
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
        "Train and adapt models, watch a training, and register losses and tasks of your own.",
        (
            "cortext.training.*",
            "cortext_live.recalibration.adapting.adapt_unlabelled",
            "cortext_live.recalibration.learner.Learner",
            "cortext_live.recalibration.state.LearnerStore",
            "cortext.training.checks.*",
            "cortext.training.loss.ctc_loss",
            "cortext.training.setup.new_model",
            "cortext.plugins.load_plugin",
        ),
    ),
    "Tuning": Part(
        "Search for good settings of the training and of the decoder.",
        ("cortext_tune.*", "cortext_tune.decoder.material.tuning_parts"),
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
    "Language models": Part(
        "Build and query n-gram models, and score text with large language models.",
        ("cortext.decoding.ngram.*", "cortext_lm.llm.large_model.LLM"),
    ),
    "Ensembles": Part(
        "Combine the sentences, lattices or posteriors of several runs.",
        ("cortext_lm.ensemble.*",),
    ),
    "Evaluation": Part(
        "Decode a split, measure error rates, fit decoder options, and verify published numbers.",
        (
            "cortext_live.recalibration.evaluation.evaluate_online",
            "cortext.evaluation.*",
            "cortext.evaluation.decoder_files.DecoderFiles",
            "cortext.evaluation.fitting.Fit",
            "cortext.evaluation.fitting.fit_options",
            "cortext_published.copy_task.import_copy_task",
            "cortext.evaluation.redecode.decode_evaluation",
            "cortext.evaluation.settings.LargeModelFiles",
            "cortext.evaluation.settings.SearchSettings",
            "cortext_published.verification.*",
        ),
    ),
    "Live decoding": Part(
        "Decode features while they arrive, and keep a log of daily use.",
        (
            "cortext_live.core.pipeline.Pipeline",
            "cortext_live.core.pipeline.Update",
            "cortext_live.core.acoustic_stream.PipelineOptions",
            "cortext_live.core.acoustic_stream.EndpointOptions",
            "cortext_live.core.decoder.with_llm",
            "cortext_published.falcon.Decoder",
            "cortext_live.casing.*",
            "cortext_live.casing.train.train_case",
            "cortext_live.casing.train.CasingOptions",
            "cortext_live.usage.writer.UsageLog",
            "cortext_live.usage.writer.UtteranceRecord",
            "cortext_live.usage.writer.session_of_today",
            "cortext_live.usage.statistics.read_use",
        ),
    ),
    "Speech LLM": Part(
        "Train and use an audio language model that reads neural activity; speak text aloud.",
        (
            "cortext_speechllm.*",
            "cortext_speechllm.audio_llm.*",
            "cortext_speechllm.memory.check_gpu_memory",
            "cortext_speechllm.targets.*",
            "cortext_live.voices.*",
        ),
    ),
    "TPU, TensorFlow and cloud": Part(
        "Train with TensorFlow, and rent a machine to train on.",
        (
            "cortext_tune.cloud.*",
            "cortext_tpu.keras_tf.convert.from_torch",
            "cortext_tpu.keras_tf.convert.to_torch",
            "cortext_tpu.keras_tf.models.keras_model",
            "cortext_tpu.keras_tf.pipeline.datasets",
            "cortext_tpu.keras_tf.strategy.choose_strategy",
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
}


def load() -> griffe.ModulesCollection:
    """Return all packages as griffe reads them, which takes seconds."""
    loader = griffe.GriffeLoader(search_paths=["src"])
    for folder in sorted(Path("src").glob("cortext*")):
        loader.load(folder.name)
    return loader.modules_collection


def pages(packages: griffe.ModulesCollection | None = None) -> dict[str, str]:
    """Return the pages, Markdown by address; mkdocstrings writes what `:::` names.

    `packages` are those that `load` returns, which is called by default.
    """
    packages = packages or load()
    documented = {title: _names(packages, part) for title, part in PARTS.items()}
    written = {INDEX: _index(packages, documented)}
    for title, names in documented.items():
        text = front(title) + f"# {title}\n\n{PARTS[title].text}\n\n"
        written[page_of(title)] = text + "".join(f"::: {name}\n\n" for name in names)
    return written


def nav() -> list[Any]:
    """Return the pages as mkdocs' navigation lists them."""
    return [INDEX, *({title: page_of(title)} for title in PARTS)]


def page_of(title: str) -> str:
    """Return the address of a part's page."""
    return f"reference/python/{title.lower().replace(',', '').replace(' ', '-')}.md"


def _names(packages: griffe.ModulesCollection, part: Part) -> list[str]:
    """Return a page's names; what two packages export is under the first."""
    names: dict[str, str] = {}
    for name in part.names:
        module = name.removesuffix(".*")
        listed = [f"{module}.{each}" for each in _exports(packages, module)]
        for each in listed if name.endswith(".*") else [name]:
            if packages[each].is_module:  # its module has the same name
                each += "." + each.rpartition(".")[2]
            names.setdefault(packages[each].canonical_path, each)
    return list(names.values())


def _exports(packages: griffe.ModulesCollection, module: str) -> list[str]:
    return sorted(map(str, packages[module].exports or ()))


def _index(packages: griffe.ModulesCollection, documented: dict[str, list[str]]) -> str:
    homes = {packages[name].canonical_path for names in documented.values() for name in names}
    short = [f"cortext.{name}" for name in _exports(packages, "cortext")]
    assert all(packages[name].canonical_path in homes for name in short)
    text = (
        front("Python")
        + (
            "# Python interface\n\n"
            "Find the class or function for a task; its page lists every argument with its type and"
            " its default. [Use it from Python](../guides/python.md) shows them at work.\n\n"
            "## Short names\n\n`import cortext` gives these names. Each is loaded when it is first"
            " used.\n\n"
        )
        + _summary(packages, short)
    )
    for title, names in documented.items():
        link = page_of(title).removeprefix("reference/")
        text += f"## {title}\n\n{PARTS[title].text} [Read the page]({link}).\n\n"
        text += _summary(packages, names)
    return text


def _summary(packages: griffe.ModulesCollection, names: list[str]) -> str:
    rows = []
    for name in names:
        found = packages[name]
        first = found.docstring.value.split("\n\n")[0] if found.docstring else ""
        rows.append((f"[{code(name)}][{found.canonical_path}]", first))
    return table(("Name", "Purpose"), rows)
