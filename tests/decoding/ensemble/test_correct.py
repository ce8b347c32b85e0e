"""Generative correction: the model's word counts, but only about words that were heard."""

import random

import pytest

from cortext.decoding.ensemble import Candidates, EnsembleOptions, combine
from cortext.decoding.ensemble.candidates import weighted
from cortext.decoding.ensemble.correct import LargeCorrector, prompt_for
from cortext.errors import DecodingError, LanguageModelError

WORDS = ["how", "are", "you", "who", "our", "today", "to", "day", "i", "a"]


class Table:
    """A model that gives each text the log-probability of a table, and writes what it is told."""

    def __init__(self, log_probs=(), other=-50.0, answer=""):
        self.log_probs, self.other, self.answer, self.asked = dict(log_probs), other, answer, []

    def score(self, prompt, texts):
        self.asked += texts
        return [self.log_probs.get(text, self.other) for text in texts]

    def write(self, prompt, most_words):
        return self.answer


def correct(texts, llm, **options):
    return combine([Candidates.of(texts)], EnsembleOptions(method="correct", **options), llm=llm)[0]


def test_the_prompt_shows_the_hypotheses_with_their_votes():
    prompt = prompt_for(weighted(Candidates.of(["who are you", "how are you", "", "how are you"]), EnsembleOptions()))
    assert prompt.splitlines()[1:4] == ["- how are you (50%)", "- who are you (25%)", "- (nothing) (25%)"]


def test_the_model_may_recombine_words_and_the_votes_weigh_against_it():
    heard = ["how our you", "who are you", "how our you"]
    llm = Table({"how are you": -2.0, "how our you": -8.0, "who are you": -8.0, "who our you": -8.0})
    # words are heard 2 : 1, so the errors to be expected are 2/3 for "how our you", 1 for one word of the other
    # ("how are you": 2/3 * 1 + 1/3 * 1) and 4/3 for "who are you"
    assert correct(heard, llm, llm_weight=0.1).text == "how are you"  # -0.2 - 1 against -0.8 - 2/3
    assert correct(heard, llm, llm_weight=0.05).text == "how our you"  # -0.1 - 1 against -0.4 - 2/3
    assert set(llm.asked) == {"how are you", "how our you", "who are you", "who our you"}


def test_a_bound_on_candidates_leaves_the_systems_own_sentences():
    llm = Table()
    correct(["a b c", "d e f"], llm, candidates=1)
    assert set(llm.asked) == {"a b c", "d e f"}


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
        def score(self, prompt, texts):
            raise LanguageModelError("not enough memory for a single sentence", where="tiny")

    found = correct(["a", "b", "a"], Failing())
    assert (found.text, found.degraded) == ("a", "no large model: tiny: not enough memory for a single sentence")
    assert combine([Candidates.of(["a", "b", "a"])])[0].degraded is None


def test_it_needs_a_model():
    with pytest.raises(DecodingError, match="correct needs a large language model; give one with --llm"):
        correct(["a"], None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    pytest.importorskip("transformers")
    from tiny_llm import save_tiny_lm

    from cortext.decoding.llm.model import CausalLM

    return LargeCorrector(CausalLM.load(save_tiny_lm(tmp_path_factory.mktemp("tiny")), device="cpu"))


def test_scores_are_those_of_a_plain_loop(tiny):
    import torch

    lm = tiny.lm
    (found,) = tiny.score("Which?", ["how are you"])
    before = [lm.tokenizer.bos_token_id, *lm.tokenizer.encode("Which?\nSentence:", add_special_tokens=False)]
    tokens = lm.tokenizer.encode(" how are you", add_special_tokens=False)
    expected = 0.0
    for n, token in enumerate(tokens):
        with torch.no_grad():
            logits_V = lm.network(torch.tensor([before + tokens[:n]])).logits[0, -1]
        expected += float(logits_V.log_softmax(-1)[token])
    assert found == pytest.approx(expected, abs=1e-3)


def test_what_a_model_chooses_is_made_of_words_that_were_heard(tiny):
    dice = random.Random(0)
    trials = []
    for number in range(12):
        heard = [" ".join(dice.choices(WORDS, k=dice.randint(0, 5))) for _ in range(3)]
        trials.append(Candidates.of(heard, id=number))
    combined = combine(trials, EnsembleOptions(method="correct", llm_weight=5), llm=tiny)
    for found, trial in zip(combined, trials, strict=True):
        assert found.degraded is None
        assert set(found.words) <= {word for words in trial.best for word in words}
    seen = [found.words in trial.best for found, trial in zip(combined, trials, strict=True)]
    assert not all(seen)  # some were recombined


def test_free_answers_come_from_the_model(tiny):
    import torch

    lm = tiny.lm
    found = tiny.write("Which?", 2)
    before = [lm.tokenizer.bos_token_id, *lm.tokenizer.encode("Which?\nSentence:", add_special_tokens=False)]
    tokens = list(before)
    for _ in range(4 * 2 + 16):
        with torch.no_grad():
            tokens.append(int(lm.network(torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] == lm.tokenizer.eos_token_id:
            break
    written = lm.tokenizer.decode(tokens[len(before) :], skip_special_tokens=True)
    assert found == next((line for line in written.splitlines() if line.strip()), "")


def test_a_chat_template_is_used_where_there_is_one(tiny, monkeypatch):
    template = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[answer] "
    monkeypatch.setattr(tiny.lm.tokenizer, "chat_template", template)
    assert tiny.context("Which?") == "[user] Which?\n[answer] Sentence:"
