"""A large language model in the word search."""

import functools
import gc
import itertools
import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from engine_cases import NEUTRAL, TEXTS, posteriors
from tiny_llm import SENTENCES
from tokenizers import Tokenizer, models, pre_tokenizers

from cortext.decoding import Decoder
from cortext.decoding.engine import LiveBatch
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext_lm.llm import fusion
from cortext_lm.llm.cache_kind import CacheKind, cache_kind
from cortext_lm.llm.fusion import Fusion, FusionStats
from cortext_lm.llm.large_model import LLM
from cortext_lm.llm.model import CausalLM


class NgramNetwork(torch.nn.Module):
    """A network that says what an n-gram says.

    `<s>`, with what unknown words have, is token 0 and `</s>` token 1.
    """

    def __init__(self, ngram, words):
        super().__init__()
        self.ngram, self.words, self.rows = ngram, words, {}
        self.config = transformers.MambaConfig(
            vocab_size=len(words) + 2, num_hidden_layers=1, sentence_end=True
        )
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.register_module("embeddings", torch.nn.Embedding(len(words) + 2, 1))

    @property
    def base_model(self):
        return self

    def get_input_embeddings(self):
        return self.embeddings

    def get_output_embeddings(self):
        return None

    def row(self, history):
        if history not in self.rows:
            state = self.ngram.begin()
            for token in history:
                state = self.ngram.score(state, self.words[token - 2])[1] if token > 1 else state
            said = [
                self.ngram.end(state),
                *(self.ngram.score(state, word)[0] for word in self.words),
            ]
            self.rows[history] = [math.log(1 - math.fsum(map(math.exp, said))), *said]
        return self.rows[history]

    def forward(self, input_ids, **_):
        rows = [
            [self.row(tuple(each[1 : n + 1])) for n in range(len(each))]
            for each in input_ids.tolist()
        ]
        return transformers.modeling_outputs.CausalLMOutput(logits=torch.tensor(rows))


def ngram_model(directory):
    """A causal language model of whole words that says what a directory's n-gram says."""
    lm = LanguageModel.open(directory)
    words = sorted(lm.lexicon)
    vocabulary = {token: number for number, token in enumerate(["<s>", "</s>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"
    )
    return CausalLM("n-gram", NgramNetwork(lm.ngram, words), fast)


class Counting:
    """A scorer: minus the number of tokens. `gate` is closed for as long as it is to wait."""

    longest, evaluated, passes, peak_mb = 100, 0, 0, 0.0

    def __init__(self):
        self.gate, self.asked = threading.Event(), []
        self.gate.set()

    def score(self, sequences):
        if sequences:
            assert self.gate.wait(60)
        self.asked.append(list(sequences))
        return [-float(len(sequence)) for sequence in sequences]

    def retain(self, sequences):
        pass


class Bytes:
    """Stands for a model; its tokens are bytes."""

    name = "bytes"

    def prefix(self, context=""):
        return [0]

    def tokens(self, text, context=""):
        return list(text.encode())


@pytest.fixture
def counting(monkeypatch):
    scorer = Counting()
    monkeypatch.setattr(fusion, "scorer", lambda *_: scorer)
    return scorer


@pytest.fixture(scope="module")
def lm_dir(tmp_path_factory):
    """A 3-gram whose probabilities sum to 1."""
    folder = tmp_path_factory.mktemp("fusion") / "lm"
    LanguageModel.build([*TEXTS, "they would like two seas", "go home too"], 3, folder)
    return folder


@pytest.fixture(scope="module")
def tiny(tiny_lm_dir):
    return CausalLM.load(tiny_lm_dir, device="cpu")


def options(lm_weight=1.0, **llm):
    return DecoderOptions(**NEUTRAL, lm_weight=lm_weight, llm=dict(mode="fusion", **llm))


def batch(*hypotheses, is_last=False, lm=-1.0):
    """A batch of hypotheses, the first one the best; the n-gram gives each word `lm`."""
    n = len(hypotheses)
    return LiveBatch(
        ids=np.arange(n, dtype=np.uint32),
        parent_ids=np.zeros(n, dtype=np.uint32),
        words=[tuple(each.split()) for each in hypotheses],
        acoustic=-np.arange(n, dtype=np.float32) * 100,
        lm=np.array([lm * len(each.split()) for each in hypotheses], dtype=np.float32),
        added=np.zeros(n, dtype=np.float32),
        frame=0,
        is_last=is_last,
    )


def same(one, other):
    return [(each.text, each.score, each.words) for each in one] == [
        (e.text, e.score, e.words) for e in other
    ]


@pytest.mark.parametrize("form", ["interpolate", "add"])
@pytest.mark.parametrize("text", TEXTS[:3])
def test_a_model_that_is_the_ngram_changes_nothing(lm_dir, text, form):
    """Added to itself with weight 0.5 the n-gram counts half as much again."""
    log_probs_PV = posteriors(text, 2.0)
    plain = Decoder.from_dir(lm_dir, dict(history_words=8, lm_weight=1.5 if form == "add" else 1.0))
    reader = LLM(ngram_model(lm_dir))
    fused = Decoder.from_dir(lm_dir, dict(llm=dict(mode="fusion", weight=0.5, form=form))).with_llm(
        reader
    )
    expected, found = plain.decode(log_probs_PV, "release"), fused.decode(log_probs_PV, "release")
    assert found.texts == expected.texts
    assert [each.score for each in found] == pytest.approx(
        [each.score for each in expected], abs=1e-3
    )
    assert [each.llm_score for each in found] == pytest.approx(
        [each.lm_score for each in expected], abs=1e-3
    )


def test_a_hypothesis_is_brought_to_what_both_models_say_of_its_words(lm_dir, tiny):
    """Against sums of an n-gram's and a network's scores.

    A hypothesis that was not scored has the score of its longest scored prefix.
    """
    settings = options(
        lm_weight=1.5, weight=0.4, most_hypotheses=6, every_frames=4, history_words=8
    )
    hook, ngram, had_score = Fusion(tiny, settings), LanguageModel.open(lm_dir).ngram, []

    @functools.cache
    def said(words):
        tokens = [tiny.start, *tiny.tokens(" ".join(words))]
        logits_TV = tiny.network(torch.tensor([tokens])).logits[0].double().log_softmax(dim=-1)
        llm, state = (
            sum(logits_TV[n, token].item() for n, token in enumerate(tokens[1:])),
            ngram.begin(),
        )
        for word in words:
            log_prob, state = ngram.score(state, word)
            llm -= log_prob
        return 1.5 * 0.4 * llm

    scored = {()}

    def expected(live):
        return [
            said(next(w[:n] for n in range(len(w), -1, -1) if w[:n] in scored)) for w in live.words
        ]

    def best(live, added):
        values = live.acoustic + 1.5 * live.lm + added
        return {live.words[row] for row in np.argsort(-values, kind="stable")[:6]}

    def watched(live):
        added = hook(live)
        scored.update(best(live, live.added))
        while live.is_last and not best(live, np.array(expected(live))) <= scored:
            scored.update(best(live, np.array(expected(live))))
        assert live.added + added == pytest.approx(expected(live), abs=1e-3)
        had_score.extend(words in scored for words in live.words)
        return added

    decoder = Decoder.from_dir(lm_dir, NEUTRAL | dict(lm_weight=1.5, history_words=8))
    session = decoder.stream("release", hook=watched, every_frames=4)
    session.step(posteriors(TEXTS[3], 2.0))
    for each in session.finish()[:3]:
        assert each.llm_score == pytest.approx(said(tuple(each.text.split())), abs=1e-3)
    assert 20 < sum(had_score) < len(had_score)


def test_weight_zero_is_no_fusion(lm_dir, tiny):
    log_probs_PV = posteriors(TEXTS[1], 2.0)
    decoder = Decoder.from_dir(lm_dir, dict(history_words=8))
    plain = decoder.decode(log_probs_PV, "release")
    session = decoder.stream("release", hook=Fusion(tiny, options(weight=0.0)), every_frames=5)
    session.step(log_probs_PV)
    assert same(session.finish(), plain)
    settings = {"llm": {"mode": "fusion", "weight": 0.0}}
    nbest = decoder.with_options(**settings).with_llm(LLM(tiny)).decode(log_probs_PV, "release")
    assert same(nbest, plain)
    assert all(each.llm_score is None for each in nbest)


def test_what_a_list_at_the_end_has_lost_the_search_keeps(lm_dir, tmp_path):
    """Of homophones the list holds the n-gram's choice alone.

    In the search the other model's comes first.
    """
    LanguageModel.build(["i want two go home"] * 20 + list(TEXTS), 3, tmp_path / "other")
    reader, log_probs_PV = (
        LLM(ngram_model(tmp_path / "other")),
        posteriors("i want to go home", 0.5),
    )
    decoder = Decoder.from_dir(lm_dir, dict(nbest=1, llm=dict(weight=0.9))).with_llm(reader)
    assert decoder.decode(log_probs_PV, "release")[0].text == "i want to go home"
    fused = decoder.with_options(llm=dict(mode="fusion"))
    assert fused.decode(log_probs_PV, "release")[0].text == "i want two go home"


def test_any_chunking_and_any_number_of_threads_give_the_same(lm_dir, tiny):
    decoder = Decoder.from_dir(lm_dir, dict(llm=dict(mode="fusion", every_frames=4))).with_llm(
        LLM(tiny)
    )
    # Of 8, 13 and 17 letters.
    utterances = [posteriors(TEXTS[number], 1.5, number) for number in (4, 2, 0)]
    expected = decoder.search_batch(utterances, "release")
    for found, other in zip(
        decoder.search_batch(utterances, "release", threads=3), expected, strict=True
    ):
        assert same(found, other)
    session = decoder.stream("release")
    for frame in range(len(utterances[0])):
        session.step(utterances[0][frame : frame + 1])
    ranked = decoder.decode(utterances[0], "release")
    assert same(session.finish(), ranked)
    unhurried = decoder.with_options(llm=dict(budget_ms=1e6))
    assert same(unhurried.decode(utterances[0], "release"), ranked)


@pytest.mark.parametrize(
    "kind", [CacheKind("states", state_bytes=1), CacheKind("uncached")], ids=["states", "uncached"]
)
def test_a_model_that_is_not_read_as_a_tree_finds_the_same(lm_dir, tiny, monkeypatch, kind):
    decoder = Decoder.from_dir(lm_dir, dict(llm=dict(mode="fusion"))).with_llm(LLM(tiny))
    expected = decoder.decode(posteriors(TEXTS[4], 1.5), "release", context="where to")
    monkeypatch.setattr("cortext_lm.llm.cache_kind.cache_kind", lambda _: kind)
    found = decoder.decode(posteriors(TEXTS[4], 1.5), "release", context="where to")
    assert found.texts == expected.texts
    assert [each.score for each in found] == pytest.approx(
        [each.score for each in expected], abs=1e-3
    )
    assert decoder.llm.fusion.utterances == 2
    assert decoder.llm.fusion.peak_mb > 0


def from_scratch(lm, hypotheses):
    """What a model says of each hypothesis, and the tokens that it reads for that.

    All but the last of each.
    """
    sentences = [torch.tensor([lm.start, *lm.tokens(" ".join(words))]) for words in hypotheses]
    tokens_BT = torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=-1)
    with torch.no_grad():
        logits_BTV = lm.network(tokens_BT[:, :-1].clamp(min=0)).logits.double()
    said_BT = logits_BTV.log_softmax(dim=-1).gather(2, tokens_BT[:, 1:, None].clamp(min=0))[..., 0]
    return said_BT.where(tokens_BT[:, 1:] >= 0, 0.0).sum(dim=1), int((tokens_BT[:, 1:] >= 0).sum())


def test_far_fewer_tokens_are_read_than_from_scratch_and_the_scores_are_the_same(lm_dir, tiny):
    """The same live hypotheses are scored again at each query.

    At least five times as many tokens, equal to 1e-3.
    """
    totals, lexicon, counted = (
        FusionStats(),
        LanguageModel.open(lm_dir).lexicon,
        dict(tree=0, scratch=0, scores=0),
    )
    cache_kind(tiny)  # what it tries first, of any model, is not counted
    decoder, texts, queries = Decoder.from_dir(lm_dir, dict(history_words=8)), TEXTS[1::2], []

    def counts(module, args, kwargs):
        counted["tree"] += (
            kwargs["input_ids"].numel()
            if threading.current_thread().name == "cortext-fusion"
            else 0
        )

    def watched(live):
        del queries[:]
        added = hook(live)
        for wanted in queries:
            expected, n_tokens = from_scratch(tiny, wanted)
            rows = [live.words.index(words) for words in wanted]
            found = (live.added + added)[rows] / 0.5 + live.lm[rows]
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
            counted["scratch"] += n_tokens
            counted["scores"] += len(wanted)
        return added

    handle = tiny.body.register_forward_pre_hook(counts, with_kwargs=True)
    for seed, text in enumerate(texts):
        hook = Fusion(tiny, options(weight=0.5), totals=totals)
        ask = hook._scores.ask
        hook._scores.ask = lambda query, ask=ask: (queries.append(query.wanted), ask(query))[1]
        session = decoder.stream("release", hook=watched, every_frames=5)
        session.step(fake_log_probs(text, noise=1.5, seed=seed, lexicon=lexicon))
        session.finish()
    handle.remove()
    assert counted["scratch"] > 5 * counted["tree"] > 0
    assert (totals.from_scratch, totals.evaluated) == (counted["scratch"], counted["tree"])
    assert (totals.utterances, totals.hypotheses) == (len(texts), counted["scores"])
    assert totals.passes <= totals.queries + len(texts)
    assert totals.late == 0


def test_the_page_works_as_written(lm_dir, tiny_lm_dir):
    text = (Path(__file__).parents[3] / "docs/guides/large-models-in-the-search.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    made = {}
    exec(code.replace("path/to/model", str(tiny_lm_dir)).replace("path/to/lm", str(lm_dir)), made)
    assert made["nbest"].degraded is None
    assert made["reader"].fusion.from_scratch > 5 * made["reader"].fusion.evaluated > 0


def test_counts(tiny):
    """Words of one token.

    Two hypotheses of 1, then one of 2 and one of 1 tokens; in the tree `of` is read once.
    """
    pairs = itertools.permutations(sorted({word for text in SENTENCES for word in text.split()}), 2)
    one, two = next(
        (one, two)
        for one, two in pairs
        if [len(tiny.tokens(each)) for each in (one, two, f"{one} {two}")] == [1, 1, 2]
    )
    hook = Fusion(tiny, options())
    hook(batch(one, two, ""))
    hook(batch(f"{one} {two}", two, is_last=True))
    stats = hook.stats
    assert (stats.utterances, stats.queries, stats.hypotheses) == (1, 2, 4)
    assert (stats.from_scratch, stats.from_scratch_once) == (1 + 1 + 2 + 1, 1 + 1 + 2)
    assert (stats.evaluated, stats.passes) == (2, 2)
    assert 0 < stats.peak_mb < 1
    assert min(stats.model_s, stats.waited_s) > 0


def test_totals_are_sums_and_the_highest_peak():
    totals = FusionStats(utterances=1, queries=2, passes=3, peak_mb=4.0)
    totals.add(FusionStats(utterances=1, queries=5, passes=7, peak_mb=3.0))
    assert totals == FusionStats(utterances=2, queries=7, passes=10, peak_mb=4.0)


def test_the_best_hypotheses_are_scored(counting):
    """The n-gram's weight counts, and the word score: `c d` is better than `b` by them."""
    hook = Fusion(
        Bytes(),
        DecoderOptions(lm_weight=2.0, word_score=45.0, llm=dict(weight=0.5, most_hypotheses=2)),
    )
    live = batch("a", "b", "c d", "", lm=-2.0)
    live.acoustic[:] = [0, -60, -80, 0]  # with n-gram and word score 41, -19, +2 and 0
    added = hook(live)
    assert counting.asked[-1] == [tuple(b"a"), tuple(b"c d")] or counting.asked[-1] == [tuple(b"a")]
    assert added.dtype == np.float32
    assert added[1] == added[3] == 0.0
    assert added[0] == pytest.approx(2.0 * 0.5 * (-1 + 2))
    hook(batch(is_last=True))


def test_tokens_are_penalised_as_at_the_end(counting):
    hook = Fusion(Bytes(), options(lm_weight=1.0, weight=0.5, token_penalty=0.25))
    assert hook(batch("ab", is_last=True)) == pytest.approx([0.5 * (-2 - 2 * 0.25 + 1)])


def test_a_weight_changed_in_mid_utterance_counts_from_the_next_look_on(counting):
    """Nothing is read again for it."""
    hook = Fusion(Bytes(), options(weight=0.5))
    assert hook(batch("ab")) == pytest.approx([0.5 * (-2 + 1)])
    hook.set_options(options(lm_weight=3.0, weight=0.25))
    assert hook(batch("ab", "abc")) == pytest.approx([3 * 0.25 * (-2 + 1), 3 * 0.25 * (-3 + 1)])
    hook.set_options(options(form="add", weight=2.0))
    assert hook(batch("ab", "abc")) == pytest.approx([2 * (-2 + 1), 2 * (-3 + 1)])
    hook.set_options(options(weight=0.0))
    assert hook(batch("ab", "abcd", is_last=True)) == pytest.approx([0.0, 0.0])
    assert [each for each in counting.asked if each] == [[tuple(b"ab")], [tuple(b"abc")]]


@pytest.mark.parametrize(
    "changes", [dict(weight=0.9), dict(weight=2.0, form="add")], ids=["weight", "form"]
)
def test_a_session_fuses_by_the_last_weight_set(lm_dir, tmp_path, changes):
    """Of homophones, which no list at the end has both of."""
    LanguageModel.build(["i want two go home"] * 20 + list(TEXTS), 3, tmp_path / "other")
    decoder = Decoder.from_dir(lm_dir, dict(nbest=1, llm=dict(mode="fusion", weight=0.01)))
    decoder = decoder.with_llm(LLM(ngram_model(tmp_path / "other")))
    log_probs_PV = posteriors("i want to go home", 0.5)
    assert decoder.decode(log_probs_PV, "release")[0].text == "i want to go home"
    expected = decoder.with_options(llm=changes).decode(log_probs_PV, "release")
    assert expected[0].text == "i want two go home"
    for half in (0, len(log_probs_PV) // 2):
        session = decoder.stream("release")
        session.step(log_probs_PV[:half])
        session.set_options(llm=changes)
        session.step(log_probs_PV[half:])
        found = session.finish()
        assert found.texts == expected.texts
        assert [each.score for each in found] == pytest.approx(
            [each.score for each in expected], abs=1e-3
        )


def test_a_session_that_began_in_fusion_may_continue_without(lm_dir, tiny):
    decoder = Decoder.from_dir(lm_dir, dict(llm=dict(mode="fusion"))).with_llm(LLM(tiny))
    log_probs_PV = posteriors(TEXTS[0], 1.0)
    session = decoder.stream("release")
    session.step(log_probs_PV[:20])
    session.set_options(llm=dict(weight=0.0, mode="rescore"))
    session.step(log_probs_PV[20:])
    found, expected = session.finish(), decoder.with_llm(None).decode(log_probs_PV, "release")
    assert found[0].text == expected[0].text
    assert found[0].score == pytest.approx(expected[0].score, abs=1e-3)
    assert found[0].llm_score is None


def test_the_search_waits_no_longer_than_its_budget_and_results_count_when_they_come(counting):
    hook = Fusion(Bytes(), options(weight=0.5, budget_ms=30.0))
    counting.gate.clear()
    for _ in range(3):
        began = time.perf_counter()
        assert hook(batch("ab", "abc")) == pytest.approx([0.0, 0.0])
        assert 0.025 < time.perf_counter() - began < 5  # the model would take a minute
    counting.gate.set()
    until = time.monotonic() + 30
    while not np.any(added := hook(batch("ab", "abc"))) and time.monotonic() < until:
        pass
    assert added == pytest.approx([0.5 * (-2 + 1), 0.5 * (-3 + 1)])
    assert hook.stats.late >= 6
    counting.gate.clear()
    # The beginning's, for now.
    assert hook(batch("ab c", "ab")) == pytest.approx([0.5 * (-2 + 1)] * 2)
    threading.Timer(0.2, counting.gate.set).start()
    assert hook(batch("ab c", "ab", is_last=True)) == pytest.approx(
        [0.5 * (-4 + 2), 0.5 * (-2 + 1)]
    )


def test_queries_that_the_model_has_no_time_for_are_dropped(counting):
    """While it reads `a`, there come `b` and `c`: of the two `c` alone still lives."""
    hook = Fusion(Bytes(), options(budget_ms=1.0))
    counting.gate.clear()
    hook(batch("a"))
    until = time.monotonic() + 30
    while hook._scores._next is not None and time.monotonic() < until:
        time.sleep(0.001)
    hook(batch("b"))
    hook(batch("c"))
    counting.gate.set()
    hook(batch("c", is_last=True))
    assert [each for each in counting.asked if each] == [[tuple(b"a")], [tuple(b"c")]]


def test_a_hypothesis_longer_than_the_window_has_its_beginnings_score(counting):
    counting.longest = 4
    hook = Fusion(Bytes(), options(weight=0.5))
    assert hook(batch("ab", "ab cdef", is_last=True)) == pytest.approx([-0.5, -0.5])
    assert hook.failed is None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "memory ran out"),
        (RuntimeError("boom\nmore of it"), "boom"),
        (None, "{}: gave scores that are no numbers"),
    ],
)
def test_a_model_that_fails_leaves_the_ngrams_result(lm_dir, tiny, monkeypatch, error, message):
    """It reads well twice, and then fails.

    What it added is taken back, and the sentence says so.
    """
    log_probs_PV, passes = posteriors(TEXTS[0], 1.5), []
    plain = Decoder.from_dir(lm_dir, dict(history_words=8)).decode(log_probs_PV, "release")
    score = fusion.scorer(tiny, [0], 1.0).__class__.score

    def failing(self, sequences):
        passes.append(sequences)
        if len(passes) <= 3:
            return score(self, sequences)
        if error is None:
            return [float("nan")] * len(sequences)
        raise error

    monkeypatch.setattr("cortext_lm.llm.tree.TokenTree.score", failing)
    decoder = Decoder.from_dir(lm_dir, dict(llm=dict(mode="fusion", weight=0.2))).with_llm(
        LLM(tiny)
    )
    nbest = decoder.search_batch([log_probs_PV], "release")[0]
    assert nbest.degraded == f"searched without the large model: {message.format(tiny.name)}"
    assert nbest[0].text == plain[0].text
    assert [each.llm_score for each in nbest] == pytest.approx([0.0] * len(nbest), abs=1e-4)
    assert len(passes) == 4


def test_a_model_that_cannot_begin_fails_the_same_way(monkeypatch):
    class Broken(Bytes):
        def prefix(self, context=""):
            raise ValueError("no prefix")

    hook = Fusion(Broken(), options())
    assert hook(batch("a", is_last=True)) == pytest.approx([0.0])
    assert hook.failed == "no prefix"


def test_a_panic_in_compiled_code_fails_the_same_way(counting):
    """Such errors are no `Exception`; the search must not wait for ever."""

    class Panic(BaseException):
        pass

    def panics(text, context=""):
        raise Panic("index out of bounds")

    lm = Bytes()
    lm.tokens = panics
    hook = Fusion(lm, options())
    assert hook(batch("a")) == pytest.approx([0.0])
    assert hook(batch("a", is_last=True)) == pytest.approx([0.0])
    assert hook.failed == "index out of bounds"


def test_a_model_that_gives_no_answer_in_time_fails_the_same_way(counting):
    hook = Fusion(Bytes(), options(budget_ms=1.0), patience_s=0.05)
    counting.gate.clear()
    assert hook(batch("a", is_last=True)) == pytest.approx([0.0])
    assert hook.failed == "it gave no answer within 0.05 s"
    counting.gate.set()


def test_threads_end_with_their_utterances(counting):
    """A hundred of them, and some that nobody finishes."""
    before = set(threading.enumerate())

    def of_fusion():
        return [
            each
            for each in threading.enumerate()
            if each.name == "cortext-fusion" and each not in before
        ]

    for number in range(100):
        hook = Fusion(Bytes(), options())
        hook(batch(f"a{number % 7}", is_last=True))
        assert not of_fusion()
    left = [Fusion(Bytes(), options()) for _ in range(20)]
    for hook in left:
        hook(batch("a"))
    assert len(of_fusion()) == 20
    del left, hook
    gc.collect()
    until = time.monotonic() + 30
    while of_fusion() and time.monotonic() < until:
        time.sleep(0.01)
    assert not of_fusion()


@pytest.mark.slow
def test_an_interpreter_ends_though_utterances_have_not():
    """One waits for its next query, and one is in a forward pass that will not come back."""
    code = """
import sys, time
from types import SimpleNamespace
from cortext_lm.llm import fusion
from cortext.decoding.options import DecoderOptions
import numpy as np

class Scorer:
    longest, evaluated, passes, peak_mb = 100, 0, 0, 0.0
    def score(self, sequences):
        if sequences == [(9,)]:
            time.sleep(600)
        return [0.0] * len(sequences)
    def retain(self, sequences):
        pass

fusion.scorer = lambda *_: Scorer()
fusion.AT_EXIT_S = 0.2
lm = SimpleNamespace(name="fake", prefix=lambda context: [0], tokens=lambda text, context: [int(text)])
options = DecoderOptions(llm=dict(mode="fusion", budget_ms=20.0))
hooks = [fusion.Fusion(lm, options) for _ in range(2)]
for hook, word in zip(hooks, ["5", "9"]):
    one = np.zeros(1, dtype=np.float32)
    hook(SimpleNamespace(words=[(word,)], acoustic=one, lm=one, added=one, is_last=False))
print("ends")
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ends\n", "")
