"""Log-probabilities of sentences.

By hand, against a plain loop over the network, and whatever the batch.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_llm import bpe_tokenizer
from transformers import OPTConfig

from cortext.errors import LanguageModelError
from cortext_lm.llm import scoring
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.scoring import TokenScore, score_texts, written_forms

TEXTS = [
    "how are you",
    "",
    "i would like some water today",
    "no",
    "the weather is nice",
    "how are you",
    "how are we",
]
CONTEXT = "what do you think of it today"

WORDS = ("<s>", "</s>", "yes", "no", "Yes", "No", ".", "?", "!")
NEXT = {
    "<s>": (0.01, 0.02, 0.4, 0.2, 0.2, 0.1, 0.04, 0.02, 0.01),
    "yes": (0.01, 0.3, 0.1, 0.5, 0.01, 0.02, 0.02, 0.02, 0.02),
    "no": (0.02, 0.25, 0.6, 0.05, 0.02, 0.02, 0.02, 0.01, 0.01),
    "Yes": (0.01, 0.01, 0.02, 0.03, 0.03, 0.03, 0.5, 0.25, 0.12),
    "No": (0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.25, 0.25, 0.2),
}
"""Probability of each of `WORDS` after a word."""


def two_word_model(**settings: Any) -> CausalLM:
    """A Llama whose layers add nothing, so that the next token depends on the last one alone, as
    `NEXT` says.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    pieces = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="</s>")
    )
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token="<s>", eos_token="</s>")
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        rms_norm_eps=1e-12, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, **settings,
    )  # fmt: skip
    network = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in network.model.layers.parameters():
            parameter.zero_()
        network.model.embed_tokens.weight.copy_(torch.eye(len(WORDS), 16))
        network.lm_head.weight.zero_()
        for word, probabilities in NEXT.items():  # the last norm makes 4 of the 1 among 16 numbers
            network.lm_head.weight[:, WORDS.index(word)] = torch.tensor(probabilities).log() / 4
    return CausalLM("two words", network, tokenizer)


def test_a_sentence_has_the_product_of_its_tokens_probabilities():
    found = score_texts(two_word_model(), ["yes no", "no", ""])
    assert [score.n_tokens for score in found] == [2, 1, 0]
    assert [math.exp(score.log_prob) for score in found] == pytest.approx(
        [0.4 * 0.5, 0.2, 1.0], rel=1e-6
    )


def test_a_context_is_read_and_not_counted():
    found = score_texts(two_word_model(), ["yes", "no yes"], context="yes no")
    assert [score.n_tokens for score in found] == [1, 2]
    assert [math.exp(score.log_prob) for score in found] == pytest.approx(
        [0.6, 0.05 * 0.6], rel=1e-6
    )


def test_a_model_of_whole_sentences_counts_their_end():
    found = score_texts(two_word_model(sentence_end=True), ["yes no", ""])
    assert [score.n_tokens for score in found] == [3, 1]
    assert [math.exp(score.log_prob) for score in found] == pytest.approx(
        [0.4 * 0.5 * 0.25, 0.02], rel=1e-6
    )


def test_written_forms_are_added_up():
    found = score_texts(two_word_model(), ["yes", "no"], variants="written")
    assert [math.exp(score.log_prob) for score in found] == pytest.approx(
        [0.2 * 0.87, 0.1 * 0.7], rel=1e-6
    )
    assert [score.n_tokens for score in found] == [2, 2]
    assert score_texts(two_word_model(), [""], variants="written") == [TokenScore(0.0, 0)]


def test_written_forms_that_are_the_same_tokens_count_once():
    from tokenizers import Regex, normalizers

    model = two_word_model()
    letters = [normalizers.Lowercase(), normalizers.Replace(Regex("[^a-z ]"), "")]
    model.tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(letters)
    assert score_texts(model, ["yes no"], variants="written") == score_texts(model, ["yes no"])


def test_a_written_sentence_has_a_capital_its_i_and_a_stop():
    assert written_forms("i think i'm in it") == [f"I think I'm in it{stop}" for stop in ".?!"]
    assert written_forms("what is it")[1] == "What is it?"


def _llama(**settings: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, **settings)
    )


def _gpt2(**settings: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **settings))


def _opt(**settings: Any) -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=32, word_embed_proj_dim=16, ffn_dim=48, num_hidden_layers=2, init_std=0.3, pad_token_id=1,
        **settings,
    )  # fmt: skip
    return OPTForCausalLM(config)


def _qwen3_5(**settings: Any) -> Any:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=4, head_dim=16, linear_key_head_dim=8,
        linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, **settings,
    )  # fmt: skip
    return Qwen3_5ForCausalLM(config)


def _gemma2(**settings: Any) -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16, sliding_window=6,
        final_logit_softcapping=3.0, **settings,
    )  # fmt: skip
    return Gemma2ForCausalLM(config)


def _cohere(**settings: Any) -> Any:
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        logit_scale=0.25,
        pad_token_id=None,
        **settings,
    )
    return CohereForCausalLM(config)


def _granite(**settings: Any) -> Any:
    from transformers import GraniteConfig, GraniteForCausalLM

    config = GraniteConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, logits_scaling=3.0, **settings
    )  # fmt: skip
    return GraniteForCausalLM(config)


HEADS = dict(num_attention_heads=4, num_key_value_heads=2)
KINDS = {
    "gpt2": (_gpt2, dict(initializer_range=0.3)),
    "opt": (_opt, dict(num_attention_heads=4)),
    "llama": (_llama, dict(initializer_range=0.3, **HEADS)),
    "qwen3_5": (_qwen3_5, dict(initializer_range=0.3, pad_token_id=None, **HEADS)),
    "gemma2": (_gemma2, dict(initializer_range=0.3, **HEADS)),
    "cohere": (_cohere, dict(initializer_range=0.3, **HEADS)),
    "granite": (_granite, dict(initializer_range=0.3, **HEADS)),
}


@pytest.fixture(scope="module", params=KINDS)
def lm(request: pytest.FixtureRequest) -> CausalLM:
    """Random models of several families.

    Learned and rotary positions, recurrent layers, bent and scaled logits.
    """
    tokenizer = bpe_tokenizer()
    make, settings = KINDS[request.param]
    torch.manual_seed(1)
    network = make(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=1, **settings)
    return CausalLM(request.param, network, tokenizer)


@torch.no_grad()
def plain_loop(lm: CausalLM, text: str, context: str = "") -> float:
    """What a reader of transformers' manual would write, one sentence at a time, over the whole
    of it.
    """
    whole = " ".join(f"{context} {text}".split())
    ids = [0, *lm.tokenizer.encode(whole, add_special_tokens=False)]
    n_before = 1 + len(lm.tokenizer.encode(context, add_special_tokens=False))
    log_probs_TV = lm.network(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return sum(float(log_probs_TV[t - 1, ids[t]]) for t in range(n_before, len(ids)))


@pytest.mark.parametrize("context", ["", CONTEXT])
@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_are_those_of_a_plain_loop(lm: CausalLM, context: str, side: str):
    lm.tokenizer.padding_side = side
    expected = [plain_loop(lm, text, context) for text in TEXTS]
    found = [score.log_prob for score in score_texts(lm, TEXTS, context)]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("context", ["", CONTEXT])
def test_a_batch_gives_what_each_sentence_gives_alone(lm: CausalLM, context: str):
    together = score_texts(lm, TEXTS, context)
    alone = [score_texts(lm, [text], context, batch_tokens=1)[0] for text in TEXTS]
    assert [score.log_prob for score in together] == pytest.approx(
        [score.log_prob for score in alone], rel=1e-5
    )
    assert [score.n_tokens for score in together] == [score.n_tokens for score in alone]


def test_a_model_is_known_for_what_it_does_after_its_head(lm: CausalLM):
    assert lm.splits is (lm.name not in ("gemma2", "cohere", "granite"))
    assert lm.continues


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_that_are_bent_by_a_few_hundredths_are_noticed(dtype: torch.dtype):
    make, settings = KINDS["gemma2"]
    torch.manual_seed(1)
    network = make(vocab_size=320, bos_token_id=0, eos_token_id=1, **settings).to(dtype).eval()
    network.config.final_logit_softcapping = None
    assert CausalLM("straight", network, bpe_tokenizer()).splits
    with torch.no_grad():
        largest = network(torch.arange(10, 17)[None]).logits.abs().max()
    network.config.final_logit_softcapping = 3 * float(largest)  # tanh(1/3) is 0.964 thirds
    assert not CausalLM("bent", network, bpe_tokenizer()).splits


class Watched:
    """Counts what goes through a part of a network."""

    def __init__(self, module: Any) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self._handle = module.register_forward_hook(self._see, with_kwargs=True)

    def _see(self, module: Any, args: Any, kwargs: Any, out: Any) -> None:
        given = kwargs.get("input_ids", args[0] if args else None)
        self.shapes.append(tuple(given.shape))

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


@pytest.fixture
def llama(tiny_lm_dir: Path) -> CausalLM:
    return CausalLM.load(tiny_lm_dir)


def test_the_vocabulary_is_held_for_few_positions_at_a_time(
    llama: CausalLM, monkeypatch: pytest.MonkeyPatch
):
    expected = score_texts(llama, TEXTS)
    monkeypatch.setattr(scoring, "LOGITS_BYTES", 4 * llama.vocab_size * 3)
    with Watched(llama.head) as head:
        found = score_texts(llama, TEXTS)
    assert [score.log_prob for score in found] == pytest.approx(
        [score.log_prob for score in expected], rel=1e-6
    )
    assert max(math.prod(shape[:-1]) for shape in head.shapes) == 3


def test_what_bends_its_logits_reads_few_positions_at_a_time(monkeypatch: pytest.MonkeyPatch):
    make, settings = KINDS["gemma2"]
    lm = CausalLM(
        "bent", make(vocab_size=320, bos_token_id=0, eos_token_id=1, **settings), bpe_tokenizer()
    )
    assert not lm.splits
    monkeypatch.setattr(scoring, "LOGITS_BYTES", 4 * lm.vocab_size * 20)
    with Watched(lm.body) as body:
        score_texts(lm, TEXTS)
    assert max(math.prod(shape) for shape in body.shapes) <= 20


def test_the_same_sentence_is_read_once(llama: CausalLM):
    with Watched(llama.body) as body:
        found = score_texts(llama, ["how are you"] * 5 + ["i am"])
    assert sum(rows for rows, _ in body.shapes) == 2
    assert len(set(found[:5])) == 1


def test_forms_that_differ_in_their_last_token_are_read_once(llama: CausalLM):
    forms = [llama.tokens(form) for form in written_forms("how are you")]
    assert len({tuple(tokens[:-1]) for tokens in forms}) == 1
    with Watched(llama.body) as body:
        score_texts(llama, ["how are you"], variants="written")
    assert body.shapes == [(1, len(forms[0]))]


def test_a_context_is_read_once_for_all_sentences(llama: CausalLM):
    n_before = len(llama.prefix(CONTEXT))
    with Watched(llama.body) as body:
        score_texts(llama, TEXTS, CONTEXT)
    longest = max(len(llama.tokens(text, CONTEXT)) for text in TEXTS)
    assert body.shapes == [(1, n_before - 1), (len(set(TEXTS)) - 1, longest)]


def _fails_beyond(
    llama: CausalLM, monkeypatch: pytest.MonkeyPatch, n_rows: int, error: str = "memory"
) -> list[int]:
    """From now on more than `n_rows` sentences are too many.

    Which numbers of sentences were tried.
    """
    forward, tried = llama.body.forward, []

    def limited(input_ids: Any, **kwargs: Any) -> Any:
        tried.append(len(input_ids))
        if len(input_ids) > n_rows:
            if error == "memory":
                # What torch raises then is what it raises when memory runs out.
                torch.empty(1 << 60)
            raise RuntimeError("device-side assert triggered\nand more")
        return forward(input_ids=input_ids, **kwargs)

    monkeypatch.setattr(llama.body, "forward", limited)
    return tried


def test_where_memory_runs_out_half_the_batch_is_tried_and_kept(
    llama: CausalLM, monkeypatch: pytest.MonkeyPatch
):
    texts = [
        f"{a} {b}"
        for a in ("how", "are", "you", "some")
        for b in ("water", "today", "think", "sister")
    ]
    expected = [score.log_prob for score in score_texts(llama, texts)]
    tried = _fails_beyond(llama, monkeypatch, 5)
    assert [score.log_prob for score in score_texts(llama, texts)] == pytest.approx(
        expected, rel=1e-5
    )
    assert tried[:3] == [12, 6, 3]  # sentences that differ in their last token alone count once
    assert max(tried[2:]) <= 5
    del tried[:]
    score_texts(llama, texts)
    assert max(tried) <= 5
    held = llama.batch_tokens
    score_texts(llama, texts, batch_tokens=10**6)
    assert llama.batch_tokens <= held


TOKEN_BYTES = 4 * 32 * (2 * 2 + 32)
"""What a token takes by the rule: float32, 32 hidden units, 2 layers."""


def test_no_more_goes_through_at_once_than_half_of_the_free_memory_holds(
    llama: CausalLM, monkeypatch: pytest.MonkeyPatch
):
    texts = [
        f"{a} {b}"
        for a in ("how", "are", "you", "some")
        for b in ("water", "today", "think", "sister")
    ]
    expected = [score.log_prob for score in score_texts(llama, texts)]
    free = [2 * 40 * TOKEN_BYTES]  # 40 tokens fit: of 2048, 1024, ... 32 is the first that does
    monkeypatch.setattr(scoring, "free_bytes", lambda: free[0])
    with Watched(llama.body) as body:
        found = score_texts(llama, texts)
    assert 16 < max(math.prod(shape) for shape in body.shapes) <= 32
    assert [score.log_prob for score in found] == pytest.approx(expected, rel=1e-5)
    free[0] = 0  # each goes alone: free memory may be reported too low
    with Watched(llama.body) as body:
        score_texts(llama, texts)
    assert {rows for rows, _ in body.shapes} == {1}
    free[0] = 10**12  # and it is looked at every time
    with Watched(llama.body) as body:
        score_texts(llama, texts)
    assert len(body.shapes) == 1


def test_free_memory_of_a_gpu_is_what_nobody_has_and_what_torch_keeps_empty(
    monkeypatch: pytest.MonkeyPatch,
):
    gigabyte = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 * gigabyte, 80 * gigabyte))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 16 * gigabyte)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 14 * gigabyte)
    # As OPT-6.7B: 2 * 4096 * 96 bytes a token.
    config = OPTConfig(hidden_size=4096, num_hidden_layers=32)
    network = SimpleNamespace(config=config, device=torch.device("cuda:0"), dtype=torch.float16)
    assert scoring.tokens_that_fit(network, 16384) == 2048  # of 5 GB half holds 3,413


def test_where_nothing_is_known_of_the_memory_the_most_goes_through(
    llama: CausalLM, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scoring, "free_bytes", lambda: None)
    assert scoring.tokens_that_fit(llama.network, 2048) == 2048


def test_memory_for_not_one_sentence_is_an_error(llama: CausalLM, monkeypatch: pytest.MonkeyPatch):
    _fails_beyond(llama, monkeypatch, 0)
    with pytest.raises(
        LanguageModelError, match="not enough memory for a single sentence; use a smaller model"
    ):
        score_texts(llama, TEXTS)


def test_a_model_that_fails_is_an_error_of_one_line(
    llama: CausalLM, monkeypatch: pytest.MonkeyPatch
):
    _fails_beyond(llama, monkeypatch, 0, "assert")
    with pytest.raises(
        LanguageModelError, match=r"the model failed \(device-side assert triggered\)$"
    ):
        score_texts(llama, TEXTS)


def test_scores_that_are_no_numbers_are_an_error(llama: CausalLM):
    with torch.no_grad():
        llama.network.lm_head.weight[5] = float("nan")
    with pytest.raises(LanguageModelError, match="scores that are no numbers"):
        score_texts(llama, TEXTS)


def test_a_sentence_longer_than_the_window_is_an_error(llama: CausalLM):
    with pytest.raises(
        LanguageModelError, match="a sentence has more tokens than the 255 that the model"
    ):
        score_texts(llama, ["how are you", " ".join(["you"] * 300)])


def test_a_longer_context_than_fits_is_cut_from_the_left_and_said(llama: CausalLM):
    context = "please call my sister tomorrow " * 60
    tokens = llama.tokenizer.encode(context.strip(), add_special_tokens=False)
    assert llama.prefix(context) == [llama.start, *tokens[-127:]]
    score_texts(llama, ["how are you"], context)
    assert llama.notes == [
        f"the context has {len(tokens)} tokens and {llama.name} reads at most 127 before a"
        " sentence: only the last 127 count"
    ]
