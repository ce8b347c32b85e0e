"""Settings of a word search: decoder options, threads or a cluster, and a large model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from cortext.arguments import as_count, as_number, as_path, check_text, check_type
from cortext.entry_points import load
from cortext.settings import Setting

if TYPE_CHECKING:
    from cortext.decoding.options import DecoderOptions
    from cortext.decoding.stream import LargeModel

    Options = DecoderOptions | Mapping[str, Any] | str | Path | None
else:  # The command line reads the fields below, and `cortext --help` should not load the search.
    Options = Any

OptionsFile = Annotated[
    Options,
    Setting(
        help="Decoder options: a YAML file, a run whose fitted options to use, or default.",
        kind=Path | None,
    ),
]
Threads = Annotated[
    int | None, Setting(help="Threads for the search; all cores without it.", minimum=1)
]
Ray = Annotated[
    str | None,
    Setting(help="Work on this Ray cluster, or on a `local` one.", metavar="ADDRESS"),
]
GpusPerWorker = Annotated[
    float, Setting(help="Share of a GPU for each task on Ray, for a large model.", minimum=0)
]


@dataclass(frozen=True)
class LargeModelFiles:
    """Files of a large language model, as the entry point `causal` of large models takes them.

    Attributes:
        model: Directory, or name at Hugging Face.
        lora: Directory of a LoRA adapter; None without one.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
    """

    model: str
    lora: Path | None = None
    device: str = "auto"

    @classmethod
    def of(cls, llm: LargeModelFiles | str | Path | None) -> LargeModelFiles | None:
        """Return the files themselves, or those of a directory or a name at Hugging Face."""
        if llm is None or isinstance(llm, LargeModelFiles):
            return llm
        return cls(str(as_path(llm, "llm")))

    def resolved(self) -> LargeModelFiles:
        """Return the same with absolute paths; a name at Hugging Face stays as it is."""
        model = str(Path(self.model).resolve()) if Path(self.model).is_dir() else self.model
        return LargeModelFiles(model, self.lora and self.lora.resolve(), self.device)

    def to_json(self) -> dict[str, Any]:
        """Return which model it is, wherever it runs."""
        return {"model": self.model, "lora": None if self.lora is None else str(self.lora)}

    def check(self) -> None:
        """Raise LanguageModelError where there is no such model; no weights are read."""
        load("cortext.large_models", "causal").check(self.model, self.lora)

    def open(self) -> LargeModel:
        """Load the model, without notes of earlier use; a process keeps the last one it loaded."""
        reader = _loaded(self)
        reader.forget_notes()
        return reader


@lru_cache(maxsize=1)
def _loaded(files: LargeModelFiles) -> LargeModel:
    kind = load("cortext.large_models", "causal")
    reader: LargeModel = kind.load(files.model, files.lora, files.device)
    return reader


class SearchKeywords(TypedDict, total=False):
    """Keywords of a word search, which `evaluate` and `decode` take in a Python program."""

    options: Options
    """Decoder options: None for those fitted to the run with this language model, else the
    defaults; see `cortext.evaluation.decoder_options.choose_options` for what else.
    """
    threads: int | None
    """Threads of the search, by default 1; None for one a core."""
    ray: str | None
    """Address of a Ray cluster, or `local`, whose tasks then do the search; every machine must see
    the language model under the same path.
    """
    gpus_per_worker: float
    """Share of a GPU for each of those tasks, for a large model; 0.25 lets four share one."""
    llm: LargeModelFiles | str | Path | None
    """Large language model that ranks the sentences, or takes part in the search, as `options.llm`
    says: its directory or name at Hugging Face, or `LargeModelFiles`.
    """
    context: str
    """Text before the sentences, for the large model."""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """Settings of a word search, as the command line gives them.

    Attributes:
        lm: Language-model directory; None for no search.
        options: See `cortext.evaluation.decoder_options.choose_options`.
        threads: Threads of the search; None for one a core.
        ray: Address of a Ray cluster, or `local`, whose tasks then search.
        gpus_per_worker: Share of a GPU that each of these tasks is given.
        llm: Large model that ranks the sentences or takes part in the search; None without one.
        context: Text before the sentences, for the large model.
    """

    lm: str | Path | None = None
    options: OptionsFile = None
    threads: Threads = None
    ray: Ray = None
    gpus_per_worker: GpusPerWorker = 0.0
    llm: LargeModelFiles | None = None
    context: str = ""

    def __post_init__(self) -> None:
        if self.lm is not None:
            as_path(self.lm, "lm")
        if self.threads is not None:
            as_count(self.threads, "threads", 1)
        check_text(self.context, "context")
        check_type(self.ray, (str, type(None)), "ray", "an address or None")
        as_number(self.gpus_per_worker, "gpus_per_worker", 0)

    @classmethod
    def of(cls, lm: str | Path | None, keywords: SearchKeywords) -> SearchSettings:
        """Return the settings that a Python program gives: one thread, unless it asks for more."""
        for name in keywords.keys() - SearchKeywords.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument {name!r}")
        given: dict[str, Any] = {"threads": 1, **keywords}
        return cls(lm=lm, **given | {"llm": LargeModelFiles.of(given.get("llm"))})
