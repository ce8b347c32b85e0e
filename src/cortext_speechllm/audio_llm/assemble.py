"""An audio LLM built from a small causal language model and a random audio tower.

It has the class and the files of Qwen2-Audio: everything that works with published audio LLMs works
with it, without a download. The tower is untrained. Its frames differ where the sounds differ, and
hold no other knowledge.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from cortext.config import check_fields
from cortext.errors import LanguageModelError
from cortext.extras import need
from cortext.provenance import provenance
from cortext.settings import SEED, Setting
from cortext_lm.llm.explain import explained
from cortext_lm.llm.loading import check_target, quiet, write_facts
from cortext_lm.llm.model import CausalLM
from cortext_lm.ngram.build import in_place_of

MARKER, BEGIN, END = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
_POSITIONS_PER_SECOND = 50
"""Positions of the tower in a second before its last halving: a mel spectrum each 10 ms, halved."""
_TOWER_RANGE = 0.1
"""Standard deviation of the tower's weights.

Large enough that the sound outweighs the embeddings of its positions.
"""

_FLAT = (
    "{% set chat = namespace(messages=[]) %}{% for message in messages %}"
    "{% if message['content'] is string %}{% set said = message['content'] %}"
    "{% else %}{% set parts = namespace(said='') %}"
    "{% for part in message['content'] %}{% if part['type'] == 'audio' %}"
    "{% set parts.said = parts.said + '"
    + BEGIN
    + MARKER
    + END
    + "' %}{% else %}{% set parts.said = parts.said + part['text'] %}{% endif %}{% endfor %}{% set"
    " said = parts.said %}{% endif %}{% set chat.messages = chat.messages + [{'role':"
    " message['role'], 'content': said}] %}{% endfor %}{% set messages = chat.messages %}"
)
"""Beginning of a chat template; it turns messages with audio into messages of text."""

_PLAIN = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}START{{ message['content']"
    " }}END{% else %}{{ message['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt"
    " %}START{% endif %}"
)
"""Chat template for a language model that was trained on sentences and not on chats.

The answer is such a sentence.
"""


@dataclass(frozen=True)
class TowerSettings:
    """The size of a random audio tower. Raises LanguageModelError for impossible values."""

    width: Annotated[int, Setting(minimum=4, maximum=8192)] = 128
    """Width of each frame, a multiple of 2 x heads."""
    layers: Annotated[int, Setting(minimum=1, maximum=100)] = 2
    heads: Annotated[int, Setting(minimum=1, maximum=128)] = 4
    mels: Annotated[int, Setting(minimum=8, maximum=256)] = 80
    """Bands of the mel spectrum."""
    window_s: Annotated[int, Setting(minimum=1, maximum=600)] = 30
    """Seconds of the longest sound."""
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_fields(self, "the tower's ", LanguageModelError)
        if self.width % (2 * self.heads):
            what = (
                f"the tower's width is {self.width}; it must be a multiple of {2 * self.heads},"
                " twice its heads"
            )
            raise LanguageModelError(what)


def assemble(
    lm: str | Path, out: str | Path, options: TowerSettings | None = None
) -> dict[str, Any]:
    """Write an audio LLM made of a causal language model to `out`.

    The scores that the language model gives a sentence stay as they are. Its tokenizer gets the
    markers of audio.

    Args:
        lm: Causal language model: a directory, or a name on the Hugging Face Hub.
        out: Directory to write.
        options: Size and seed of the audio tower; by default `TowerSettings()`.

    Returns:
        The facts that `cortext.json` in `out` records.

    Raises:
        LanguageModelError: For a model that cannot be used, and for an `out` that holds something
            else.
        MissingLibrary: Without the extra `speechllm`.
    """
    transformers = need("transformers", "speechllm")
    out = Path(out)
    options = options or TowerSettings()
    check_target(out, [lm])
    causal_lm = CausalLM.load(lm, device="cpu")
    with (
        torch.random.fork_rng(devices=[]),
        quiet(transformers),
        explained(causal_lm.name, "cannot be part of an audio LLM"),
    ):
        torch.manual_seed(options.seed)
        tokenizer = _with_markers(causal_lm)
        network = _network(transformers, causal_lm, tokenizer, options)
        _check_same(causal_lm, network)
        processor = transformers.Qwen2AudioProcessor(
            transformers.WhisperFeatureExtractor(
                feature_size=options.mels, chunk_length=options.window_s, return_attention_mask=True
            ),
            tokenizer,
            chat_template=tokenizer.chat_template,
        )
        tokenizer.chat_template = None  # the processor has it
        facts = {
            "kind": "audio LLM",
            "language_model": causal_lm.describe(),
            "tower": asdict(options),
            "n_parameters": sum(weight.numel() for weight in network.parameters()),
            "provenance": provenance(),
        }
        with in_place_of(out) as partial:
            network.save_pretrained(partial)
            processor.save_pretrained(partial)
            write_facts(partial, facts)
    return facts


def _with_markers(lm: CausalLM) -> Any:
    """Return the tokenizer with the audio markers and a chat template that writes them."""
    from tokenizers import AddedToken

    tokenizer = lm.tokenizer
    if tokenizer.eos_token is None:
        fix = "name one as eos_token in its tokenizer_config.json"
        raise LanguageModelError(
            "the tokenizer has no EOS token, and nothing can end an answer", where=lm.name, fix=fix
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.add_tokens(
        [AddedToken(each, special=True, normalized=False) for each in (BEGIN, MARKER, END)], True
    )
    start = tokenizer.convert_ids_to_tokens(lm.start)
    plain = _PLAIN.replace("START", start).replace("END", tokenizer.eos_token)
    tokenizer.chat_template = _FLAT + (tokenizer.chat_template or plain)
    return tokenizer


def _network(transformers: Any, lm: CausalLM, tokenizer: Any, options: TowerSettings) -> Any:
    """Return a network of Qwen2-Audio's class with the language model's weights."""
    if not lm.splits or lm.head.bias is not None:
        what = (
            "cannot be part of an audio LLM: its logits are more than a matrix times its hidden"
            " units"
        )
        raise LanguageModelError(what, where=lm.name, fix="give another language model")
    old = lm.network.config.get_text_config(decoder=True)
    n_words = max(len(tokenizer), lm.head.weight.shape[0])
    config = transformers.Qwen2AudioConfig(
        audio_config=transformers.Qwen2AudioEncoderConfig(
            d_model=options.width,
            encoder_layers=options.layers,
            encoder_attention_heads=options.heads,
            encoder_ffn_dim=4 * options.width,
            num_mel_bins=options.mels,
            max_source_positions=_POSITIONS_PER_SECOND * options.window_s,
            initializer_range=_TOWER_RANGE,
        ),
        text_config=old.to_dict()
        | {
            "vocab_size": n_words,
            "tie_word_embeddings": False,
            "dtype": "float32",
        },
        audio_token_index=tokenizer.convert_tokens_to_ids(MARKER),
    )
    network = transformers.Qwen2AudioForConditionalGeneration(config).eval()
    given = dict(lm.body.state_dict())
    embedding = lm.network.get_input_embeddings().weight
    own = network.get_input_embeddings()
    embedding_name = next(
        name
        for name, weight in network.model.language_model.state_dict().items()
        if weight.data_ptr() == own.weight.data_ptr()
    )
    given[embedding_name] = _more_rows(embedding, n_words, noise=1.0)
    network.model.language_model.load_state_dict(given)
    with torch.no_grad():
        network.lm_head.weight.copy_(_more_rows(lm.head.weight, n_words, noise=0.0))
        linear = network.model.multi_modal_projector.linear
        torch.nn.init.normal_(linear.weight, std=float(embedding.std()) / options.width**0.5)
        torch.nn.init.zeros_(linear.bias)
    end = tokenizer.eos_token_id
    network.generation_config = transformers.GenerationConfig(
        eos_token_id=end, pad_token_id=tokenizer.pad_token_id
    )
    return network


def _more_rows(weight_VH: torch.Tensor, n_words: int, noise: float) -> torch.Tensor:
    """Return the matrix with rows for new tokens.

    A new row is the mean of all rows, plus Gaussian noise of `noise` times their standard
    deviation.
    """
    mean_H = weight_VH.mean(0)
    more = n_words - len(weight_VH)
    spread_H = noise * weight_VH.std(0)
    return torch.cat([weight_VH, mean_H + spread_H * torch.randn(more, weight_VH.shape[1])])


@torch.no_grad()
def _check_same(lm: CausalLM, network: Any) -> None:
    """Raise LanguageModelError where the language model in the network gives other logits."""
    tokens_BT = torch.tensor([[lm.start, *lm.tokens("how are you")]])
    expected_BTV = lm.network(tokens_BT, use_cache=False).logits
    found_BTV = network(input_ids=tokens_BT, use_cache=False).logits[..., : expected_BTV.shape[-1]]
    if not torch.allclose(
        found_BTV, expected_BTV, rtol=1e-3, atol=1e-3 * float(expected_BTV.abs().max())
    ):
        what = "cannot be part of an audio LLM: it reckons otherwise within one"
        raise LanguageModelError(what, where=lm.name, fix="give another language model")
