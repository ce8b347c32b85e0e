"""Free generation, against plain loops, the library's own beam search and teacher forcing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from cortext.errors import DecodingError
from cortext_speechllm.audio_llm.generate import GeneratedText, generate
from cortext_speechllm.audio_llm.inputs import answer_logits, lay_out, teacher_forced
from cortext_speechllm.audio_llm.model import AudioLLM

INSTRUCTION = "write"
LENGTHS = torch.tensor([9, 21, 14, 3])


@pytest.fixture(scope="module")
def llm(tiny_audio_llm: Path) -> AudioLLM:
    """Its sentences end now and then, by both of its end tokens."""
    llm = AudioLLM.load(tiny_audio_llm, device="cpu")
    with torch.no_grad():
        llm.network.lm_head.weight[llm.ends] *= 4
    return llm


def brains(llm: AudioLLM) -> torch.Tensor:
    return 3 * torch.randn(4, 21, llm.audio_width, generator=torch.Generator().manual_seed(0))


def write(
    llm: AudioLLM, brain_BPA: torch.Tensor, n_B: torch.Tensor = LENGTHS, **options: float
) -> list[list[GeneratedText]]:
    return generate(llm, brain_BPA, n_B, llm.prompt(INSTRUCTION), **options)  # type: ignore[arg-type]


def summed_log_prob(llm: AudioLLM, brain_PA: torch.Tensor, tokens: list[int]) -> float:
    """By teacher forcing, without a cache and without padding."""
    sequence = teacher_forced(
        llm, brain_PA[None], torch.tensor([len(brain_PA)]), llm.prompt(INSTRUCTION), [tokens]
    )
    with torch.no_grad():
        log_probs_KV = answer_logits(llm, sequence)[0].log_softmax(-1)
    return float(log_probs_KV[range(len(tokens)), tokens].sum())


def test_one_beam_takes_the_likeliest_token_each_time(llm: AudioLLM) -> None:
    brain_BPA = brains(llm)
    found = write(llm, brain_BPA, beams=1, max_length=12, min_length=0)
    for row, n in enumerate(LENGTHS.tolist()):
        tokens: list[int] = []
        while len(tokens) < 12 and not (tokens and tokens[-1] in llm.ends):
            embeds, mask, _ = lay_out(
                llm,
                brain_BPA[row : row + 1, :n],
                LENGTHS[row : row + 1],
                llm.prompt(INSTRUCTION),
                [tokens],
            )
            with torch.no_grad():
                tokens.append(int(llm.logits(llm.hidden(embeds, mask))[0, -1].argmax()))
        assert found[row][0].tokens == tuple(tokens)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -0.5])
@pytest.mark.parametrize(("beams", "max_length", "min_length"), [(2, 10, 0), (4, 16, 3), (5, 6, 5)])
def test_beams_are_those_of_the_library(
    llm: AudioLLM, beams: int, max_length: int, min_length: int, penalty: float
) -> None:
    brain_BPA = brains(llm)
    embeds, mask, _ = lay_out(llm, brain_BPA, LENGTHS, llm.prompt(INSTRUCTION), [[]] * 4, left=True)
    with torch.no_grad():
        theirs = llm.network.generate(
            inputs_embeds=embeds, attention_mask=mask.long(), num_beams=beams, num_return_sequences=beams,
            max_new_tokens=max_length, min_new_tokens=min_length, length_penalty=penalty, do_sample=False,
            eos_token_id=llm.ends, pad_token_id=llm.tokenizer.pad_token_id, early_stopping=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    options = dict(
        beams=beams,
        max_length=max_length,
        min_length=min_length,
        length_penalty=penalty,
        nbest=beams,
    )
    found = write(llm, brain_BPA, **options)
    for row, candidates in enumerate(found):
        texts = [
            llm.chat.text(each.tolist())
            for each in theirs.sequences[row * beams : (row + 1) * beams]
        ]
        scores = theirs.sequences_scores[row * beams : (row + 1) * beams].tolist()
        expected: dict[str, float] = {}
        for text, score in zip(texts, scores, strict=True):
            expected.setdefault(text, score)
        assert [each.text for each in candidates] == list(expected)
        values = [each.log_prob / each.n_tokens**penalty for each in candidates]
        assert values == pytest.approx(list(expected.values()), abs=1e-3)


def test_scores_are_summed_log_probabilities_with_the_end(llm: AudioLLM) -> None:
    brain_BPA = brains(llm)
    lasts = list[int]()
    for row, candidates in enumerate(write(llm, brain_BPA, beams=6, nbest=6, max_length=15)):
        assert len({each.text for each in candidates}) == len(candidates) > 1
        for each in candidates:
            expected = summed_log_prob(llm, brain_BPA[row, : LENGTHS[row]], list(each.tokens))
            assert each.log_prob == pytest.approx(expected, abs=1e-3)
            assert each.n_tokens == len(each.tokens)
            lasts.append(each.tokens[-1])
    assert set(llm.ends) <= set(lasts)


def test_as_many_beams_as_tokens_find_the_best_of_all_sentences(llm: AudioLLM) -> None:
    """Two tokens at most: all of them are tried."""
    brain_PA = brains(llm)[0, :9]
    embeds, mask, _ = lay_out(llm, brain_PA[None], torch.tensor([9]), llm.prompt(INSTRUCTION), [[]])
    with torch.no_grad():
        first_V = llm.logits(llm.hidden(embeds, mask))[0, -1].log_softmax(-1)
        going_on = [token for token in range(llm.vocab_size) if token not in llm.ends]
        brain_BPA, n_patches_B = (
            brain_PA.expand(len(going_on), -1, -1),
            torch.full((len(going_on),), 9),
        )
        embeds, mask, _ = lay_out(
            llm, brain_BPA, n_patches_B, llm.prompt(INSTRUCTION), [[token] for token in going_on]
        )
        second_BV = llm.logits(llm.hidden(embeds, mask)[:, -1]).log_softmax(-1)
    scored = {(token,): float(first_V[token]) for token in llm.ends}
    for token, second_V in zip(
        going_on, (first_V[going_on, None] + second_BV).tolist(), strict=True
    ):
        scored |= {(token, other): log_prob for other, log_prob in enumerate(second_V)}
    best = max(scored, key=scored.__getitem__)
    (found,) = write(
        llm,
        brain_PA[None],
        torch.tensor([9]),
        beams=llm.vocab_size,
        max_length=2,
        min_length=0,
        length_penalty=0.0,
    )
    assert (found[0].tokens, found[0].log_prob) == (best, pytest.approx(scored[best], abs=1e-4))


def test_a_trial_gets_the_same_alone_and_whatever_its_padding(llm: AudioLLM) -> None:
    brain_BPA = brains(llm)
    together = write(llm, brain_BPA, beams=4, nbest=4, max_length=14)
    padded_BPA = torch.cat([brain_BPA, torch.full((4, 9, llm.audio_width), 100.0)], 1)
    for row, n in enumerate(LENGTHS.tolist()):
        padded_BPA[row, n:] = 100.0
    for other in (
        write(llm, padded_BPA, beams=4, nbest=4, max_length=14),
        [write(llm, brain_BPA[row : row + 1, :n], torch.tensor([n]), beams=4, nbest=4, max_length=14)[0]
         for row, n in enumerate(LENGTHS.tolist())],
    ):  # fmt: skip
        for mine, theirs in zip(together, other, strict=True):
            assert [each.tokens for each in mine] == [each.tokens for each in theirs]
            assert [each.log_prob for each in mine] == pytest.approx(
                [each.log_prob for each in theirs], abs=1e-3
            )


def test_lengths_are_kept(llm: AudioLLM) -> None:
    for candidates in write(llm, brains(llm), beams=4, nbest=4, max_length=7, min_length=4):
        for each in candidates:
            own = [token for token in each.tokens if token not in llm.ends]
            assert 4 <= len(own) <= each.n_tokens <= 7


def test_no_trials_give_no_sentences(llm: AudioLLM) -> None:
    assert write(llm, torch.zeros(0, 5, llm.audio_width), torch.zeros(0, dtype=torch.long)) == []


def test_a_model_without_probabilities_writes_nothing(tiny_audio_llm: Path) -> None:
    llm = AudioLLM.load(tiny_audio_llm, device="cpu")
    torch.nn.init.constant_(llm.network.lm_head.weight, math.nan)
    assert write(llm, brains(llm)) == [[GeneratedText("", -math.inf, 0)]] * 4


@pytest.mark.parametrize(
    "options",
    [
        dict(beams=2, nbest=3),
        dict(beams=0),
        dict(max_length=3, min_length=4),
        dict(max_length=0, min_length=0),
    ],
)
def test_impossible_searches_are_one_line(llm: AudioLLM, options: dict[str, int]) -> None:
    with pytest.raises(DecodingError, match="cannot be searched for"):
        write(llm, brains(llm), **options)


def test_memory_that_runs_out_is_one_line(llm: AudioLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(llm, "step", none)
    with pytest.raises(
        DecodingError,
        match="not enough memory to write 4 sentences at once with 3 beams; use fewer",
    ):
        write(llm, brains(llm), beams=3)


def test_sentences_end_where_the_models_positions_do(
    llm: AudioLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_given = sum(map(len, llm.prompt(INSTRUCTION))) + int(LENGTHS.max())
    monkeypatch.setattr(llm.chat, "window", n_given + 4)
    assert {
        len(each[0].tokens) for each in write(llm, brains(llm), beams=1, max_length=5, min_length=5)
    } == {5}
    with pytest.raises(
        DecodingError,
        match=rf"6 tokens behind {n_given} positions.* knows {n_given + 4}; .* to 5 or",
    ):
        write(llm, brains(llm), beams=1, max_length=6)
    monkeypatch.setattr(llm.chat, "window", n_given - 1)
    with pytest.raises(DecodingError, match=rf"knows {n_given - 1}; leave long trials out"):
        write(llm, brains(llm), beams=1, max_length=1)
