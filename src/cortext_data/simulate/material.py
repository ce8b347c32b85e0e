"""The sentences to speak, and their pronunciations: the project's own, or those of files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cortext.arguments import as_path
from cortext.data.trial import SPLITS, most_labels
from cortext.errors import ConfigError, TextError
from cortext.text.inventory import Inventory, read_inventory
from cortext.text.language import Language, read_language
from cortext.text.lexicon import Lexicon, inventory_of
from cortext.text.pronunciation import pronounced, pronouncer
from cortext_data.simulate.config import SimulatorConfig
from cortext_data.simulate.plan import Prompt, trial_counts
from cortext_data.simulate.sentences import SentenceSplits, read_sentences, splits, with_names
from cortext_data.simulate.speech import with_pauses

EXAMPLES = {"spanish": Path(__file__).parent / "spanish"}
"""Folders with `text.txt` and `lexicon.txt` of presets that have their own."""
_WORDS_NAMED = 8


@dataclass(frozen=True)
class Material:
    """Sentences, and pronunciations that are neither English nor spelt.

    Attributes:
        corpus: Name of the sentences' corpus; None for the project's English sentences.
        text: File of the sentences; None for the project's English sentences.
        lexicon_file: File of the pronunciations, or None.
        lexicon: The pronunciations, or None.
    """

    corpus: str | None = None
    text: Path | None = None
    lexicon_file: Path | None = None
    lexicon: Lexicon | None = None

    def prompts(self, config: SimulatorConfig) -> tuple[dict[str, list[Prompt]], list[str]]:
        """Return the prompts of each split, and the text for language models.

        Raises:
            TextError: For sentences that the language would damage, that are too few, or that have
                words without a pronunciation.
        """
        if self.text is None and not config.language.is_benchmark:
            raise TextError(
                f"the simulator has no sentences of language {config.language.name!r}",
                fix="give a text of that language",
            )
        counts = trial_counts(config)
        longest = most_labels(config.inventory)
        own = None if self.text is None else read_sentences(self.text, config.language, longest)
        chosen = splits(
            counts["train"],
            counts["val"],
            counts["test"],
            config.seed,
            text=own,
            language=config.language,
        )
        if config.name_share:
            if not _is_published(config, self.lexicon):
                raise ConfigError(
                    "name_share needs English phonemes, by whose rules names are said"
                )
            chosen = _with_names(chosen, config)
        spoken = {} if _is_published(config, self.lexicon) else self._pronounced(config, chosen)
        prompts = {
            split: [
                Prompt(s.text, self.corpus or s.source, spoken.get(s.text))
                for s in getattr(chosen, split)
            ]
            for split in SPLITS
        }
        return prompts, chosen.lm

    def _pronounced(
        self, config: SimulatorConfig, chosen: SentenceSplits
    ) -> dict[str, tuple[str, ...]]:
        """Return the tokens of every spoken sentence, with its pauses.

        Words of the language-model text, too, must have a pronunciation. Raises TextError.
        """
        inventory, language = config.inventory, config.language
        prompts = dict.fromkeys(s.text for split in SPLITS for s in getattr(chosen, split))
        sentences = prompts | dict.fromkeys(chosen.lm)
        find = pronouncer(inventory, language, self.lexicon)
        words = dict.fromkeys(word for sentence in sentences for word in language.words(sentence))
        silent: dict[str, TextError] = {}
        for word in words:
            try:
                find(word)
            except TextError as error:
                silent[word] = error
        if silent:
            raise self._without_pronunciation(silent, len(words))
        return {
            sentence: tuple(
                with_pauses(pronounced(sentence, inventory, language, self.lexicon), inventory)
            )
            for sentence in prompts
        }

    def _without_pronunciation(self, silent: dict[str, TextError], n_words: int) -> TextError:
        named = ", ".join(sorted(silent)[:_WORDS_NAMED])
        more = f" and {len(silent) - _WORDS_NAMED} more" if len(silent) > _WORDS_NAMED else ""
        count = f"{len(silent)} of {n_words:,} words of the text have no pronunciation"
        if self.lexicon is not None:
            fix = "add them to the lexicon, or leave their sentences out"
            return TextError(f"{count}: {named}{more}", where=self.lexicon_file, fix=fix)
        first = silent[min(silent)]
        return TextError(f"{count} ({named}{more}): {first.what}", where=self.text, fix=first.fix)


def material_of(
    config: SimulatorConfig,
    preset: str,
    text: str | Path | None = None,
    lexicon: str | Path | None = None,
    language: Language | str | Path | None = None,
    inventory: Inventory | str | Path | None = None,
) -> tuple[SimulatorConfig, Material]:
    """Return the config with the chosen language and inventory, and the sentences to speak.

    Args:
        config: The preset's settings.
        preset: Name of the preset, whose own sentences are spoken unless there is a text.
        text: File of sentences, or None.
        lexicon: File of pronunciations, or None.
        language: Language by name or in a file; None for the preset's.
        inventory: Tokens by name or in a file; None for those of the lexicon, or the preset's.

    Raises:
        TextError: For a file that cannot be used, an unknown name, and a lexicon with other symbols
            than the inventory's.
    """
    if language is not None:
        chosen = language if isinstance(language, Language) else read_language(language)
        config = replace(config, language=chosen)
    example = EXAMPLES.get(preset)
    lexicon = None if lexicon is None else as_path(lexicon, "lexicon")
    if inventory is not None:
        tokens = inventory if isinstance(inventory, Inventory) else read_inventory(inventory)
        config = replace(config, inventory=tokens)
    elif lexicon is not None:
        config = replace(config, inventory=inventory_of(lexicon))
    path = lexicon or (example and example / "lexicon.txt")
    lexicon_read = None if path is None else _read_lexicon(path, config.inventory)
    if text is not None:
        text = as_path(text, "text")
        return config, Material(text.stem, text, path, lexicon_read)
    if example is None:
        return config, Material(None, None, path, lexicon_read)
    return config, Material(preset, example / "text.txt", path, lexicon_read)


def _with_names(chosen: SentenceSplits, config: SimulatorConfig) -> SentenceSplits:
    named = {}
    for number, split in enumerate(SPLITS):
        sentences = getattr(chosen, split)
        texts = with_names(sentences, config.name_share, config.seed, number)
        named[split] = [replace(s, text=t) for s, t in zip(sentences, texts, strict=True)]
    return replace(chosen, **named)


def _read_lexicon(path: Path, inventory: Inventory) -> Lexicon:
    try:
        return Lexicon.read(path, inventory, closed=False)
    except TextError as error:
        fix = f"give the lexicon's own inventory instead of {inventory.name!r}, or correct the line"
        raise TextError(error.what, where=error.where, fix=error.fix or fix) from None


def _is_published(config: SimulatorConfig, lexicon: Lexicon | None) -> bool:
    """Return whether phonemes are English ones, which are found sentence by sentence."""
    return lexicon is None and config.inventory.is_published and config.language.is_benchmark
