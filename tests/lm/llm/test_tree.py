"""Sentences scored as a tree, against a plain loop of transformers that reads each from its
beginning.
"""

import random

import pytest
import torch
import transformers
from tiny_llm import bpe_tokenizer

from cortext.errors import DecodingError
from cortext_lm.llm.cache_kind import CacheKind, StateTree, UncachedScorer, cache_kind, scorer
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.tree import TokenTree

TOKENIZER = bpe_tokenizer()
V = len(TOKENIZER)
LAYERS = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=96
)
LLAMA = LAYERS | dict(vocab_size=V, intermediate_size=48, num_key_value_heads=2)
LINEAR = dict(
    head_dim=8,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    layer_types=["linear_attention", "full_attention"],
)
CONFIGS = {
    "llama": transformers.LlamaConfig(**LLAMA),
    "tied llama": transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True),
    "gpt2": transformers.GPT2Config(
        vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_positions=96, bos_token_id=0, eos_token_id=1
    ),
    "opt": transformers.OPTConfig(**LAYERS, vocab_size=V, ffn_dim=48, word_embed_proj_dim=16),
    "qwen3": transformers.Qwen3Config(**LLAMA, head_dim=8),
    "gemma2": transformers.Gemma2Config(
        **LLAMA, head_dim=8, sliding_window=90, final_logit_softcapping=5.0
    ),
    "long windows": transformers.MistralConfig(**LLAMA, sliding_window=90),
    "short windows": transformers.MistralConfig(**LLAMA, sliding_window=8),
    "bloom": transformers.BloomConfig(vocab_size=V, hidden_size=32, n_layer=2, n_head=4),
    "mamba": transformers.MambaConfig(vocab_size=V, hidden_size=32, num_hidden_layers=2),
    "qwen3.5": transformers.Qwen3_5TextConfig(**LLAMA, **LINEAR),
}
TREES = ("llama", "tied llama", "gpt2", "opt", "qwen3", "gemma2", "long windows")
STATES = ("bloom", "qwen3.5")


def model(config):
    """A random model whose probabilities are far from each other, so that a wrong token or
    position shows.
    """
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for weights in network.parameters():
            if weights.dim() > 1:
                weights.mul_(4)
    return CausalLM("random", network, TOKENIZER)


def plain(lm, prefix, sequence):
    """The sum of the log-probabilities of a sequence that is read alone."""
    with torch.no_grad():
        logits_TV = lm.network(torch.tensor([[*prefix, *sequence]])).logits[0].double()
    rows_TV = logits_TV[len(prefix) - 1 :].log_softmax(dim=-1)
    return sum(rows_TV[place, token].item() for place, token in enumerate(sequence))


def looks(seed, n_looks=8, n_live=5):
    """Sequences that grow, branch and end from one query to the next, as a search has them."""
    rng = random.Random(seed)
    live = [()]
    for _ in range(n_looks):
        live = [
            each + tuple(rng.randrange(V) for _ in range(rng.randint(0, 3)))
            for each in rng.choices(live, k=n_live)
        ]
        yield live


@pytest.mark.parametrize("name", [*TREES, "short windows", *STATES, "mamba"])
def test_scores_equal_a_plain_loop(name):
    lm = model(CONFIGS[name])
    for prefix in ([0], [0, 7, 30, 12]):
        hypotheses = scorer(lm, prefix, cache_mb=64)
        for live in looks(seed=len(prefix), n_looks=5):
            scores = hypotheses.score(live)
            assert scores == pytest.approx([plain(lm, prefix, each) for each in live], abs=1e-3)
            hypotheses.retain(live)


@pytest.mark.parametrize("name", TREES)
def test_models_of_attention_are_read_as_trees(name):
    assert cache_kind(model(CONFIGS[name])).kind == "tree"


@pytest.mark.parametrize("name", STATES)
def test_models_that_cannot_read_a_tree_are_found_out(name):
    """Recurrent layers, and positions that come of the mask."""
    lm = model(CONFIGS[name])
    found = cache_kind(lm)
    assert found.kind == "states"
    assert isinstance(scorer(lm, [0], cache_mb=64), StateTree)
    # 60 states, where fewer than 64 are of no use.
    little = 60 * (found.state_bytes + found.token_bytes * 33) / 2**20
    assert isinstance(scorer(lm, [0], cache_mb=little), UncachedScorer)


def test_a_model_that_takes_nothing_up_again_is_read_from_the_beginning():
    """This one has a cache of its own."""
    lm = model(CONFIGS["mamba"])
    assert cache_kind(lm) == CacheKind("uncached")
    assert isinstance(scorer(lm, [0], 64), UncachedScorer)


def test_a_tree_is_not_deeper_than_what_all_layers_see(monkeypatch):
    lm = model(CONFIGS["long windows"])
    assert cache_kind(lm) == CacheKind("tree", window=90)
    monkeypatch.setattr("cortext_lm.llm.cache_kind.SENTENCE_TOKENS", 80)
    assert isinstance(scorer(lm, [0] * 10, 64), TokenTree)
    assert isinstance(scorer(lm, [0] * 11, 64), UncachedScorer)
    tree = TokenTree(lm, [0] * 10, window=90)
    assert tree.longest == 80
    with pytest.raises(
        DecodingError, match=r"^a hypothesis has 81 tokens, and the model's window has room for 80$"
    ):
        tree.score([[5] * 81])


def test_a_model_that_misreads_trees_is_found_out(monkeypatch):
    """Without the mask each token sees all hypotheses."""
    lm = model(CONFIGS["llama"])
    forward = lm.network.model.forward
    monkeypatch.setattr(
        lm.network.model, "forward", lambda *a, attention_mask=None, **others: forward(*a, **others)
    )
    assert cache_kind(lm).kind == "states"


@pytest.mark.parametrize(
    ("name", "kind", "passes"), [("llama", TokenTree, 1), ("qwen3.5", StateTree, 2)]
)
def test_a_token_is_read_once_however_many_hypotheses_share_it(name, kind, passes):
    """Of 1, 1 2, 1 2 3 and 1 2 4 the prefix (two tokens), 1 and 2 are read.

    What follows 3 and 4 nobody asked.

    States need a pass for each depth.
    """
    tree = kind(model(CONFIGS[name]), [0, 9])
    tree.score([[1], [1, 2], [1, 2, 3], [1, 2, 4]])
    assert (tree.evaluated, tree.passes) == (2 + 2, 1 + passes)
    tree.score([[1, 2, 4], [1, 2], [1, 2, 5]])
    assert (tree.evaluated, tree.passes) == (4, 1 + passes)
    tree.score([[1, 2, 4, 6, 7], [1, 2, 3, 8]])
    assert (tree.evaluated, tree.passes) == (4 + 3, 1 + 2 * passes)  # 4, 6 and 3
    assert len(tree.cached) == 1 + 2 + 3


@pytest.mark.parametrize(("name", "kind"), [("llama", TokenTree), ("qwen3.5", StateTree)])
def test_dead_branches_are_freed_and_what_is_left_still_scores_right(name, kind):
    lm = model(CONFIGS[name])
    tree = kind(lm, [0])
    branches = [[one, two, three] for one in range(1, 9) for two in range(1, 5) for three in (1, 2)]
    tree.score(branches)
    assert tree.n_cached == 1 + 8 + 8 * 4
    tree.retain([[3, 2, 1], [3, 2], [5]])
    assert tree.n_cached == 1 + 3  # 3, 3 2, 5; the last token of 3 2 1 was not read
    more = [[3, 2, 1, 7], [5, 6, 8], [3, 9, 9], [1, 1, 1]]
    assert tree.score(more) == pytest.approx([plain(lm, [0], each) for each in more], abs=1e-3)
    assert tree.n_cached == 4 + 5  # 3 2 1, 5 6, 3 9, and of the branch that came back 1 and 1 1


@pytest.mark.parametrize("n_rows", [1, 14])
def test_memory_stays_within_its_bound_and_scores_do_not_change(n_rows):
    """What had to go is read again.

    A sequence of 10 tokens is read even where the bound is below it.
    """
    lm = model(CONFIGS["qwen3"])
    free = TokenTree(lm, [0, 4])
    free.score([])
    row_bytes = free.cache_bytes // 64
    tree = TokenTree(lm, [0, 4], cache_mb=n_rows * row_bytes / 2**20)
    for live in looks(seed=3):
        live = [each[:10] for each in live]
        assert tree.score(live) == pytest.approx(free.score(live), abs=1e-3)
        assert tree.n_cached <= max(n_rows, 2 + 9)
    assert tree.evaluated > free.evaluated


def test_states_stay_within_their_bound_too():
    """Except for what they grow by within a query."""
    lm = model(CONFIGS["qwen3.5"])
    free = StateTree(lm, [0, 4])
    expected = [free.score(live) for live in looks(seed=3)]
    bound_mb = free.peak_mb / 2
    tree = StateTree(lm, [0, 4], cache_mb=bound_mb)
    for live, scores in zip(looks(seed=3), expected, strict=True):
        assert tree.score(live) == pytest.approx(scores, abs=1e-3)
    assert tree.peak_mb < 1.2 * bound_mb
    assert tree.evaluated > free.evaluated


def test_memory_grows_by_doubling_up_to_its_bound():
    lm = model(CONFIGS["llama"])
    tree = TokenTree(lm, [0], cache_mb=1)
    tree.score([])
    row_bytes = tree.cache_bytes // 64
    rng = random.Random(0)
    sizes = set()
    for _ in range(60):
        tree.score([[rng.randrange(V) for _ in range(12)] for _ in range(4)])
        sizes.add(tree.cache_bytes // row_bytes)
    bound = 2**20 // row_bytes
    assert sizes == {size for size in (64, 128, 256, 512, 1024, 2048) if size < bound} | {bound}
    assert tree.peak_mb <= 1


def test_whole_sequences_are_read_once():
    """Three beginnings: 1 2 (of two sequences), and 1.

    Each with the prefix, without the last token.
    """
    lm = model(CONFIGS["qwen3.5"])
    whole = UncachedScorer(lm, [0, 9])
    expected = [plain(lm, [0, 9], each) for each in ([1, 2, 3], [1, 2, 4], [1, 2])]
    for _ in range(2):
        assert whole.score([[1, 2, 3], [1, 2, 4], [1, 2]]) == pytest.approx(expected, abs=1e-3)
        assert whole.evaluated == (2 + 2) + (2 + 1)
    assert whole.score([()]) == [0.0]


def test_a_tree_needs_a_prefix():
    with pytest.raises(DecodingError, match="prefix"):
        TokenTree(model(CONFIGS["llama"]), [])
