"""Generative correction: the model's word counts, but only about words that were heard."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortext.errors import DecodingError, LanguageModelError
from cortext_lm.ensemble import Candidate, Candidates, EnsembleOptions, combine
from cortext_lm.ensemble.candidates import weighted
from cortext_lm.ensemble.correct import LargeCorrector, prompt_for, written
from cortext_lm.ensemble.rover import NULL, build_network

WORDS = ["how", "are", "you", "who", "our", "today", "to", "day", "i", "a"]


class Table:
    """A model that gives each text the log-probability of a table, and writes what it is given."""

    def __init__(self, log_probs=(), other=-50.0, answer=""):
        self.log_probs, self.other, self.answer, self.asked = dict(log_probs), other, answer, []

    def score(self, prompt, texts, complete=True):
        self.asked += texts if complete else []
        return [self.log_probs.get(text, self.other) for text in texts]

    def write(self, prompt, most_words):
        return self.answer


def correct(texts, llm, **options):
    return combine([Candidates.of(texts)], EnsembleOptions(method="correct", **options), llm=llm)[0]


def test_the_prompt_shows_the_hypotheses_with_their_votes():
    prompt = prompt_for(
        weighted(
            Candidates.of(["who are you", "how are you", "", "how are you"]), EnsembleOptions()
        )
    )
    assert prompt.splitlines()[1:4] == [
        "- how are you (50%)",
        "- who are you (25%)",
        "- (nothing) (25%)",
    ]


def test_the_model_may_recombine_words_and_the_votes_weigh_against_it():
    heard = ["how our you", "who are you", "how our you"]
    llm = Table(
        {"how are you": -2.0, "how our you": -8.0, "who are you": -8.0, "who our you": -8.0}
    )
    # words are heard 2 : 1, so the errors to be expected are 2/3 for "how our you", 1 for one word
    # of the other ("how are you": 2/3 * 1 + 1/3 * 1) and 4/3 for "who are you"
    assert correct(heard, llm, llm_weight=0.1).text == "how are you"  # -0.2 - 1 against -0.8 - 2/3
    assert correct(heard, llm, llm_weight=0.05).text == "how our you"  # -0.1 - 1 against -0.4 - 2/3
    assert set(llm.asked) == {"how are you", "how our you", "who are you", "who our you"}


def test_a_bound_on_candidates_leaves_the_systems_own_sentences():
    llm = Table()
    correct(["a b c", "d e f"], llm, candidates=1)
    assert set(llm.asked) == {"a b c", "d e f"}


def test_of_many_sentences_the_heaviest_are_scored():
    names = [f"{one}{two}" for one in "abcdefghijklm" for two in "abcdefghijklm"]
    system = tuple(Candidate((name,), -0.1 * n) for n, name in enumerate(names))
    llm = Table()
    combine(
        [Candidates((system,))],
        EnsembleOptions(method="correct", candidates=1, nbest=1000),
        llm=llm,
    )
    assert set(llm.asked) == set(names[:100])


def test_without_weight_the_risk_decides():
    llm = Table({"b": 0.0})
    assert correct(["a", "a", "b"], llm, llm_weight=0).text == "a"


def test_where_all_agree_nobody_is_asked():
    llm = Table()
    assert correct(["a b", "a b"], llm).text == "a b"
    assert correct([""], llm).text == ""
    assert not llm.asked


def test_only_free_lets_the_model_write_what_nobody_heard():
    llm = Table(answer="Something else, entirely.")
    assert correct(["a", "b"], llm, free=True).text == "something else entirely"
    assert correct(["a", "a"], llm, free=True).text == "something else entirely"
    assert correct(["a", "b"], llm).text in ("a", "b")
    assert correct(["b", "a", "a"], Table(answer="..."), free=True).text == "a"  # nothing written


def test_a_model_that_fails_loses_no_sentence():
    class Failing(Table):
        def score(self, prompt, texts, complete=True):
            raise LanguageModelError("not enough memory for a single sentence", where="tiny")

    found = correct(["a", "b", "a"], Failing())
    assert (found.text, found.degraded) == (
        "a",
        "no large model: tiny: not enough memory for a single sentence",
    )
    assert combine([Candidates.of(["a", "b", "a"])])[0].degraded is None


def test_it_needs_a_model():
    with pytest.raises(
        DecodingError, match="correct needs a large language model; give one with --llm"
    ):
        correct(["a"], None)


sentences = st.lists(st.sampled_from("abcd"), max_size=4).map(" ".join)


def network_of(texts):
    return build_network(weighted(Candidates.of(texts), EnsembleOptions()))


def paths_of(slots):
    """Every sentence that can be read off a network."""
    return {
        tuple(word for word in path if word != NULL)
        for path in itertools.product(*(slot.votes for slot in slots))
    }


@given(st.lists(sentences, min_size=1, max_size=4))
def test_few_paths_are_all_found_and_the_model_is_not_asked_for_beginnings(texts):
    slots, options, llm = network_of(texts), EnsembleOptions(candidates=1000), Words({})
    assert set(written("", slots, options, llm)) == paths_of(slots)
    assert not llm.n_beginnings


@given(
    st.lists(sentences, min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.1, 10.0]),
)
def test_whatever_the_model_likes_it_stays_on_the_network(texts, most, llm_weight):
    slots, options = network_of(texts), EnsembleOptions(candidates=most, llm_weight=llm_weight)
    found = written("", slots, options, Words({"a": -1.0, "foreign": 0.0}))
    assert 1 <= len(found) <= most
    assert set(found) <= paths_of(slots)


class Words(Table):
    """A model to which every word has its own log-probability.

    The best beginnings make the best sentence.
    """

    n_beginnings = 0

    def score(self, prompt, texts, complete=True):
        self.n_beginnings += 0 if complete else len(texts)
        return [sum(self.log_probs.get(word, -5.0) for word in text.split()) for text in texts]


def test_the_model_leads_the_search_to_what_the_votes_alone_would_not_keep():
    # six places with a word of two votes and one of a single vote: 64 paths, of which the model
    # wants the rarest
    heard = [" ".join(f"{name}{n}" for n in "abcdef") for name in ("x", "x", "y")]
    llm = Words({f"y{n}": -0.5 for n in "abcdef"})
    options = EnsembleOptions(candidates=2, llm_weight=1.0)
    best, _ = written("", network_of(heard), options, llm)
    assert best == tuple(f"y{n}" for n in "abcdef")  # -0.5 - 2/3 a word against -5 - 1/3
    best, _ = written("", network_of(heard), EnsembleOptions(candidates=2, llm_weight=0.0), llm)
    assert best == tuple(f"x{n}" for n in "abcdef")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pytest.importorskip("transformers")
    from tiny_llm import save_tiny_lm

    from cortext_lm.llm.model import CausalLM

    return LargeCorrector(
        CausalLM.load(save_tiny_lm(tmp_path_factory.mktemp("tiny")), device="cpu")
    )


def test_scores_are_those_of_a_plain_loop(tiny):
    import torch

    lm = tiny.lm
    (found,) = tiny.score("Which?", ["how are you"])
    before = [
        lm.tokenizer.bos_token_id,
        *lm.tokenizer.encode("Which?\nSentence:", add_special_tokens=False),
    ]
    tokens = [
        *lm.tokenizer.encode(" how are you", add_special_tokens=False),
        lm.tokenizer.eos_token_id,
    ]
    expected = []
    for n, token in enumerate(tokens):
        with torch.no_grad():
            logits_V = lm.network(torch.tensor([before + tokens[:n]])).logits[0, -1]
        expected.append(float(logits_V.log_softmax(-1)[token]))
    assert found == pytest.approx(sum(expected), abs=1e-3)
    # a beginning does not end
    (beginning,) = tiny.score("Which?", ["how are you"], complete=False)
    assert beginning == pytest.approx(sum(expected[:-1]), abs=1e-3)
    assert tiny.score("Which?", [""], complete=False) == [0.0]


def test_what_a_model_writes_can_hold_no_word_that_was_not_heard(tiny):
    # the votes count next to nothing, and there are far more paths than the search keeps
    options = EnsembleOptions(method="correct", llm_weight=1000, candidates=3)
    dice, recombined = random.Random(0), 0
    for number in range(12):
        heard = [" ".join(dice.choices(WORDS, k=dice.randint(0, 6))) for _ in range(4)]
        trial = Candidates.of(heard, id=number)
        (found,) = combine([trial], options, llm=tiny)
        assert found.degraded is None
        assert found.words in paths_of(network_of(heard))
        recombined += found.words not in trial.best
    assert recombined


def test_with_room_for_all_paths_the_one_that_the_model_likes_best_wins(tiny):
    heard = ["how are you", "who our you today", "are today"]
    trial = Candidates.of(heard)
    (found,) = combine(
        [trial], EnsembleOptions(method="correct", llm_weight=1000, candidates=1000), llm=tiny
    )
    prompt = prompt_for(weighted(trial, EnsembleOptions()))
    paths = sorted(paths_of(network_of(heard)))
    scores = dict(zip(paths, tiny.score(prompt, [" ".join(words) for words in paths]), strict=True))
    # An expected error weighs 0.001.
    assert scores[found.words] == pytest.approx(max(scores.values()), abs=0.02)


def test_a_model_that_fails_in_writing_loses_no_sentence(tiny, monkeypatch):
    def fail(*arguments, **more):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(tiny.lm.network, "generate", fail)
    options = EnsembleOptions(method="correct", free=True)
    (found,) = combine([Candidates.of(["a", "b", "b"])], options, llm=tiny)
    assert found.text == "b"
    assert found.degraded.startswith("no large model: ")
    assert "not enough memory for a single sentence" in found.degraded


def test_free_answers_come_from_the_model(tiny):
    import torch

    lm = tiny.lm
    found = tiny.write("Which?", 2)
    before = [
        lm.tokenizer.bos_token_id,
        *lm.tokenizer.encode("Which?\nSentence:", add_special_tokens=False),
    ]
    tokens = list(before)
    for _ in range(4 * 2 + 16):
        with torch.no_grad():
            tokens.append(int(lm.network(torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] == lm.tokenizer.eos_token_id:
            break
    written = lm.tokenizer.decode(tokens[len(before) :], skip_special_tokens=True)
    assert found == next((line for line in written.splitlines() if line.strip()), "")


def test_a_chat_template_is_used_where_there_is_one(tiny, monkeypatch):
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor"
        " %}[answer] "
    )
    monkeypatch.setattr(tiny.lm.tokenizer, "chat_template", template)
    assert tiny.context("Which?") == "[user] Which?\n[answer] Sentence:"


def test_a_chat_template_that_cannot_be_filled_loses_no_sentence(tiny, monkeypatch):
    monkeypatch.setattr(
        tiny.lm.tokenizer, "chat_template", "{{ raise_exception('a system message comes first') }}"
    )
    found = correct(["a", "b", "b"], tiny)
    assert found.text == "b"
    assert "a system message comes first" in found.degraded
