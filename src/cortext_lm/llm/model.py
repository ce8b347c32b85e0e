"""Causal language models of transformers.

Loaded once, with the tokens of a sentence as scoring needs them.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from cortext.errors import LanguageModelError, first_line
from cortext.extras import need
from cortext_lm.llm.adapter_bounds import check_adapter
from cortext_lm.llm.explain import ENDS, explained, out_of_memory
from cortext_lm.llm.loading import (
    DIGEST_BYTES,
    check_complete,
    check_memory,
    device_named,
    quiet,
    read_config,
    read_tokenizer,
)

SENTENCE_END = "sentence_end"
"""Field of `config.json`, true for a model that was trained on sentences with a final EOS.

EOS is the tokenizer's.
"""

BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Most tokens that go through a model at once, by the kind of device: more are no faster."""

UNKNOWN_WINDOW = 2048
"""Longest window in tokens that is assumed for a model whose configuration names none."""

SAME_WAY = (1e-5, 1e-2)
"""Largest difference between two results of the same computation, in float32 and in 16 bits.

It is a fraction of the largest number. A soft bound on logits bends those of a usual size by a few
hundredths.
"""

ANOTHER_WAY = (1e-3, 5e-2)
"""Largest difference between the results of two computations that should agree, as `SAME_WAY`."""


class CausalLM:
    """A causal language model and its tokenizer.

    Attributes:
        name: Directory or name on the Hub that it was loaded from.
        device: The device that holds it.
        network: The transformers model, in evaluation mode, without gradients.
        tokenizer: The transformers tokenizer.
        window: Most tokens that it reads at once, those before a sentence included.
        start: The token before everything: BOS, or its substitute.
        end: The token that ends a sentence, where the model was trained so (`SENTENCE_END`), else
            None.
        batch_tokens: Most tokens that go through it at once; lowered when memory does not hold
            them.
        notes: Notes for the user, one line each.
        lock: Held during a forward pass: one at a time.
    """

    def __init__(
        self, name: str, network: Any, tokenizer: Any, lora: str | Path | None = None
    ) -> None:
        self.name = name
        self.network = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.lora = None if lora is None else str(lora)
        self.device: torch.device = network.device
        self.notes: list[str] = []
        self.lock = threading.RLock()
        self.batch_tokens = BATCH_TOKENS[self.device.type]
        self.window = _window(network.config, tokenizer)
        self.start = self._start()
        self.end: int | None = (
            tokenizer.eos_token_id if getattr(network.config, SENTENCE_END, False) else None
        )
        self._joint = _joint(tokenizer)
        self._n_lasting_notes = len(self.notes)

    @classmethod
    def load(
        cls, name: str | Path, lora: str | Path | None = None, device: str = "auto"
    ) -> CausalLM:
        """Load the model of a directory or, by its name there, of the Hugging Face Hub.

        Only safetensors are read.

        Args:
            name: Directory or name.
            lora: Directory of a LoRA adapter (of peft), which is merged into the weights.
            device: `cpu`, `cuda`, `cuda:N`, or `auto`: a GPU where there is one. On a GPU the
                weights keep the type that they are stored in, on a CPU they become float32.

        Raises:
            LanguageModelError: For a model that cannot be loaded.
            MissingLibrary: Without transformers.
        """
        transformers = need("transformers", "llm")
        name = str(name)
        where = device_named(device)
        kinds: dict[str, Any] = {"dtype": "auto" if where.type == "cuda" else torch.float32}
        if where.type == "cuda":
            kinds["device_map"] = {"": str(where)}
        config = read_config(transformers, name)
        if where.type == "cpu":
            with quiet(transformers), explained(name):
                check_memory(transformers, config, name)
        tokenizer = read_tokenizer(transformers, name)
        with quiet(transformers), explained(name):
            network, facts = transformers.AutoModelForCausalLM.from_pretrained(
                name,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # check_complete refuses them below
                **kinds,
            )
        check_complete(facts, name, "causal language model")
        if lora is not None:
            network = _with_lora(network, Path(lora), name)
        with explained(name):
            lm = cls(name, network, tokenizer, lora)
            lm.splits, lm.continues  # noqa: B018 # a first pass shows whether there is memory for one
        return lm

    @staticmethod
    def check(name: str | Path, lora: str | Path | None = None) -> None:
        """Raise the error of `load` where there is no such model or adapter, or no tokenizer.

        No weights are read.
        """
        transformers = need("transformers", "llm")
        name = str(name)
        read_config(transformers, name)
        read_tokenizer(transformers, name)
        if lora is not None:
            check_adapter(Path(lora))

    def describe(self) -> dict[str, Any]:
        """Return the description of the model for result files."""
        config = self.network.config
        return {
            "model": self.name,
            "revision": getattr(config, "_commit_hash", None),
            "sha256": self.sha256,
            "lora": self.lora,
            "class": type(self.network).__name__,
            "n_parameters": sum(parameter.numel() for parameter in self.network.parameters()),
            "dtype": str(self.network.dtype).removeprefix("torch."),
            "device": str(self.device),
            "notes": list(self.notes),
        }

    def prefix(self, context: str = "") -> list[int]:
        """Return the tokens before a sentence: the start token, then those of the context.

        The context takes at most half a window. A longer one is cut from the left, and `notes` says
        so.
        """
        tokens = self._encode(context.strip())
        most = max(0, self.window // 2 - 1)
        if len(tokens) > most:
            self.note(
                f"the context has {len(tokens)} tokens and {self.name} reads at most {most} before"
                f" a sentence: only the last {most} count"
            )
            tokens = tokens[len(tokens) - most :]
        return [self.start, *tokens]

    def tokens(self, text: str, context: str = "") -> list[int]:
        """Return the tokens of a sentence after the prefix, without an end; none if it is empty."""
        text = text.strip()
        return self._encode(self._joint + text if text and context.strip() else text)

    @property
    def body(self) -> Any:
        """The network without its output layer; it returns `last_hidden_state`."""
        return self.network.base_model

    @property
    def head(self) -> Any:
        """The output layer: hidden units to logits, where `splits` says so."""
        return self.network.get_output_embeddings()

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return int(self.network.config.get_text_config(decoder=True).vocab_size)

    @cached_property
    def splits(self) -> bool:
        """Tell whether the network's logits are `head` of `body`.

        Some models scale or bend their logits after that.
        """
        if self.head is None or self.body is self.network:
            return False
        tokens_BT = self._probe()
        with self.lock, torch.inference_mode():
            whole_BTV = self.network(tokens_BT, use_cache=False).logits
            found_BTV = self.head(self.body(tokens_BT, use_cache=False).last_hidden_state)
        return _alike(found_BTV, whole_BTV, SAME_WAY)

    @cached_property
    def continues(self) -> bool:
        """Tell whether the network continues from a cache as if it had read the tokens before.

        The network is tried on a few tokens.
        """
        tokens_BT = self._probe()
        with self.lock, torch.inference_mode():
            try:
                whole_BTD = self.body(tokens_BT, use_cache=False).last_hidden_state
                kept = self.body(tokens_BT[:, :3], use_cache=True).past_key_values
                rest_BTD = self.body(
                    tokens_BT[:, 3:], past_key_values=kept, use_cache=True
                ).last_hidden_state
            # Each kind of model fails in its own way; one that fails is scored without a cache.
            except Exception:
                return False
        return _alike(rest_BTD, whole_BTD[:, 3:], ANOTHER_WAY)

    @cached_property
    def sha256(self) -> str | None:
        """SHA-256 of a directory's weights, where they are one file that takes no time to read."""
        weights = Path(self.name) / "model.safetensors"
        if not weights.is_file() or weights.stat().st_size > DIGEST_BYTES:
            return None
        with weights.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def note(self, line: str) -> None:
        """Add a note for the user, once."""
        if line not in self.notes:
            self.notes.append(line)

    def forget_notes(self) -> None:
        """Drop the notes that were added in use; notes about the model itself stay."""
        del self.notes[self._n_lasting_notes :]

    def _probe(self) -> torch.Tensor:
        """Return a few tokens [1, T] to try the network with."""
        tokens = [self.start, *(self._encode("of it and of that") * 3)][:7]
        return torch.tensor([tokens], device=self.device)

    def _encode(self, text: str) -> list[int]:
        try:
            tokens: list[int] = (
                self.tokenizer.encode(text, add_special_tokens=False) if text else []
            )
        except ENDS:
            raise
        except BaseException as error:  # compiled code panics with no Exception
            problem = f"its tokenizer failed ({first_line(error)})"
            raise LanguageModelError(problem, where=self.name) from error
        most = self.network.get_input_embeddings().num_embeddings
        if max(tokens, default=0) >= most:
            raise LanguageModelError(
                f"the tokenizer gives token {max(tokens)}, and the model knows only {most}",
                where=self.name,
                fix="give a model with the tokenizer that it was trained with",
            )
        return tokens

    def _start(self) -> int:
        """Return BOS of the tokenizer, else BOS of the configuration, else EOS.

        EOS sets documents apart in training, so a sentence may follow it. The configuration's EOS
        comes before the tokenizer's: in a model made for chats the latter ends a turn.
        """
        if self.tokenizer.bos_token_id is not None:
            return int(self.tokenizer.bos_token_id)
        config = self.network.config.get_text_config(decoder=True)
        special = {
            number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special
        }
        if (bos := _first_of(special, getattr(config, "bos_token_id", None))) is not None:
            return bos
        eos = _first_of(special, getattr(config, "eos_token_id", None))
        if eos is None:
            eos = self.tokenizer.eos_token_id
        if eos is None:
            raise LanguageModelError(
                "the tokenizer has neither a BOS nor an EOS token, and nothing can stand before a"
                " sentence",
                where=self.name,
                fix="name one as bos_token in its tokenizer_config.json",
            )
        eos_text = self.tokenizer.convert_ids_to_tokens(eos)
        self.note(
            f"the tokenizer of {self.name} has no BOS token; its EOS, {eos_text}, stands before"
            " sentences"
        )
        return int(eos)


def _first_of(known: set[int], configured: int | list[int] | None) -> int | None:
    """Return the first of one or more tokens that is known; None without one.

    Configurations name tokens that a tokenizer may not have.
    """
    named = configured if isinstance(configured, list) else [configured]
    return next((token for token in named if token in known), None)


def _alike(computed: torch.Tensor, expected: torch.Tensor, tolerances: tuple[float, float]) -> bool:
    """Return whether two tensors are equal but for rounding, in float32 or in 16 bits."""
    tolerance = tolerances[expected.dtype != torch.float32]
    return bool((computed - expected).abs().max() <= tolerance * expected.abs().max())


def _window(config: Any, tokenizer: Any) -> int:
    named = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if named:
        return int(named)
    return min(int(tokenizer.model_max_length), UNKNOWN_WINDOW)


def _joint(tokenizer: Any) -> str:
    """Return the text to put between a context and a sentence.

    With it, the tokens of the context and then of the sentence are the tokens of the joined text.
    """

    def tokens(text: str) -> list[int]:
        tokens_of_text: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return tokens_of_text

    whole, first = tokens("of it"), tokens("of")
    return "" if whole == first + tokens("it") and whole != first + tokens(" it") else " "


def _with_lora(network: Any, folder: Path, name: str) -> Any:
    """Return the network with an adapter merged into its weights.

    Raises LanguageModelError for one that does not fit.
    """
    peft = need("peft", "llm")
    check_adapter(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="(?s).*missing adapter keys")
            return peft.PeftModel.from_pretrained(network, str(folder)).merge_and_unload()
    except Exception as error:  # peft raises errors of all kinds
        if out_of_memory(error):
            fix = "use a smaller model, or another device"
            raise LanguageModelError(
                "not enough memory for the LoRA adapter", where=folder, fix=fix
            ) from error
        fix = "give the model that it was trained for"
        raise LanguageModelError(
            f"the LoRA adapter does not fit {name} ({first_line(error)})", where=folder, fix=fix
        ) from error
