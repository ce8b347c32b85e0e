"""A causal Transformer that is trained with stretches of its input hidden.

Neural features in, logits of tokens out. It follows the recipe of Feghhi et al. ("LightBeam", arXiv
2603.14002, and 2507.02800), the best single model on Brain-to-Text '25. From top to bottom, with
the published shapes for T15 and its bins of 20 ms:

    x_BTC          [B, T, 512]     smoothed features; in training, stretches of them are zero
      day layer                    none as published; or affine, or affine and softsign
      patches                      4 bins (80 ms) side by side, none shared with the next patch
    x_BPI          [B, P, 2048]    P = ceil(T / 4): bins of zeros come after the trial's last one
      embedding                    LayerNorm, linear map, LayerNorm, dropout
    x_BPD          [B, P, 384]
      5 blocks                     attention to the past 20 s, then a feed-forward network
      LayerNorm
    hidden_BPD     [B, P, 384]
      output                       one linear map
    logits_BPV     [B, P, 41]      the CTC blank, 39 phonemes, the silence between words

1. Time masks. Augmentation (`time_mask` in `cortext.features`) zeroes whole patches, 40 % of a
   trial, so that the model learns to fill them in from their surroundings. It is meant
   to keep the Transformer from memorising a small set of sentences.
2. Patches. They do not overlap: a masked patch is nowhere else to be seen.
3. Attention. A frame looks back over a bounded time (`context_frames`), so that a long recording
   costs no more per frame than a short one. In training the bound is drawn anew for each batch;
   the model then works with any bound of that range. Frames know of each other only how far apart
   they are: a learnt number for each distance is added to the scores q k / sqrt(E), before the
   softmax.
4. Causal, chunked, bidirectional. A causal model decodes while somebody speaks. In chunks of
   several frames, each frame also sees the rest of its chunk. A bidirectional model sees the whole
   trial.

The first weights are torch's own; the numbers of the distances begin at 0, a day layer as the
identity. LayerNorms have torch's epsilon (1e-5), and GELU is the exact one.

Shapes: B trials, T bins, C features, P patches (frames), I values in a patch or in all heads
(H * E), D hidden units, H heads, E units of a head, K keys (frames that may be seen), W kept
frames, L blocks, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from cortext.arguments import as_count
from cortext.cuda import kernels
from cortext.errors import ConfigError
from cortext.memory import to_device
from cortext.models.heads import outputs, read_out_layer
from cortext.models.inputs import (
    LAYERS,
    PATCH_STRIDE,
    UNITS,
    DayLayers,
    InputNetworkConfig,
    check_settings,
)
from cortext.models.layers import attention, by_distance, dropout
from cortext.models.recurrence import with_padding, without_padding
from cortext.models.registry import Output, register
from cortext.settings import FROM_0_BELOW_1, Setting

MOST_DISTANCE = 199
"""Distance in frames from which on all distances share one number (16 s in T15)."""
WIDENING = 4
"""Units of a feed-forward network, as a multiple of the hidden units."""
FRAMES = Setting(minimum=1, maximum=100_000)

State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Keys and values of the latest frames, float [L, B, W, H * E] each, the latest last; and how many
of them are of this trial, int64 [1, B]."""


@dataclass
class EmbeddingConfig(InputNetworkConfig):
    """Section `model.input_network` of a Transformer: the day layer and the embedding."""

    day_layer: Literal["softsign", "affine", "none"] = "none"
    """The day layer: an affine map of each recording day and softsign, the map alone, or none, so
    that all days share one model, as published.
    """
    input_layer_dropout: Annotated[float, FROM_0_BELOW_1] = 0.2
    """Dropout after the embedding."""


@dataclass
class TransformerConfig:
    """Section `model` for `kind: transformer`; the defaults are the published values for T15."""

    kind: Literal["transformer"] = "transformer"
    """Name of the model."""
    n_input_features: Annotated[int | None, UNITS] = None
    """Neural features per bin; null takes what the data have (after `dataset.feature_subset`)."""
    n_units: Annotated[int, UNITS] = 384
    """Hidden units of a frame."""
    n_layers: Annotated[int, LAYERS] = 5
    """Blocks of attention and feed-forward network."""
    n_heads: Annotated[int, UNITS] = 6
    """Heads of an attention."""
    head_units: Annotated[int, UNITS] = 64
    """Units of a head."""
    dropout: Annotated[float, FROM_0_BELOW_1] = 0.35
    """Dropout in the blocks: of attention's weights, after GELU, and of what a block adds."""
    patch_size: Annotated[int, PATCH_STRIDE] = 4
    """Bins in a patch."""
    patch_stride: Annotated[int, PATCH_STRIDE] = 4
    """Bins from one patch to the next; patches do not overlap, so it equals `patch_size`."""
    attention: Literal["causal", "chunked", "bidirectional"] = "causal"
    """Frames that a frame sees: itself and the past, its whole chunk and the past, or the whole
    trial. Only a causal model decodes live.
    """
    chunk_frames: Annotated[int, FRAMES] = 1
    """Frames of a chunk, for `attention: chunked`."""
    context_frames: Annotated[int, FRAMES] = 250
    """Frames before a chunk that are seen in evaluation and live decoding (20 s in T15)."""
    train_context_frames: list[int] = field(default_factory=lambda: [62, 250])
    """Least and most frames before a chunk that are seen in training.

    The number is drawn for each batch (5 to 20 s in T15).
    """
    input_network: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    """The day layer, and the dropout after the embedding."""
    diphones: bool = False
    """Learn pairs of tokens, whose probabilities are added up to those of the tokens."""
    intermediate_layer: int | None = None
    """Block, counted from 1, that the loss reads through the output, too; null for none."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.patch_stride != self.patch_size:
            problem = f"model.patch_stride is {self.patch_stride} and patch_size {self.patch_size}"
            raise ConfigError(f"{problem}; a transformer's patches do not overlap: make them equal")
        if (self.attention == "chunked") != (self.chunk_frames > 1):
            problem = f"model.attention is {self.attention!r} with chunk_frames {self.chunk_frames}"
            raise ConfigError(problem, fix="chunked needs 2 frames or more, others have 1")
        least_most = self.train_context_frames
        in_order = len(least_most) == 2 and least_most[0] <= least_most[1]
        if not in_order or not all(map(FRAMES.accepts, least_most)):
            problem = f"model.train_context_frames is {least_most}"
            raise ConfigError(problem, fix="give the least and the most frames, such as [62, 250]")


@register("transformer")
class Transformer(DayLayers):
    """Day layer, patches, embedding, blocks and output; see `forward`."""

    Config: ClassVar[type] = TransformerConfig
    pads_last_patch: ClassVar[bool] = True
    # What adapts to a new day without day layers, as in DietCORP (Feghhi et al., 2507.02800).
    adapted: ClassVar[tuple[str, ...]] = ("patch_norm", "embedding")

    def __init__(
        self, config: TransformerConfig, *, n_features: int, n_days: int, n_classes: int
    ) -> None:
        super().__init__(config, n_features=n_features, n_days=n_days)
        as_count(n_classes, "n_classes", 1)
        self.patch_norm = nn.LayerNorm(self.patch_width)
        self.embedding = nn.Linear(self.patch_width, config.n_units)
        self.embedding_norm = nn.LayerNorm(config.n_units)
        self.blocks = TransformerBlocks(config)
        self.out = read_out_layer(config.n_units, n_classes, config.diphones)

    def n_patches(self, n_bins: Any) -> Any:
        """Return the frames of logits for `n_bins` bins (an int, array or tensor)."""
        n_patches = -(-n_bins // self.config.patch_size)
        return n_patches * (n_patches > 0)  # as in `count_patches`

    def first_state(self, n_trials: int) -> State:
        """Return the state with which trials begin: no frames."""
        return self.blocks.first_state(n_trials)

    @property
    def look_ahead_frames(self) -> int | None:
        """Later frames that a frame depends on; None for the whole trial."""
        config = self.config
        return None if config.attention == "bidirectional" else config.chunk_frames - 1

    @property
    def n_hidden(self) -> int:
        """Number of hidden units that `read_out` takes, D."""
        return int(self.config.n_units)

    @property
    def read_out(self) -> nn.Module:
        """The map from hidden units to logits."""
        return self.out

    def forward(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: State | None = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> Output | tuple[torch.Tensor, State | None]:
        """Compute the logits of a batch of trials.

        A trial may come in pieces of whole patches, as in live decoding, where a piece is one
        patch: each piece takes the state after the one before.

        Args:
            x_BTC: Float [B, T, C], smoothed features.
            day_B: int64 [B], the day layer of each trial.
            state: The state to continue from; None begins a trial.
            n_patches_B: int64 [B], patches of each trial, the others being padding; None if
                nothing is padded. The bins of a trial's last patch that are not its own are zero.

        Returns:
            Logits float [B, P, V], not normalised, and the state after the last patch; None in
            training, for trials of different lengths, and for a model that is not causal. With
            `n_patches_B` also what a loss reads of diphones and of the intermediate layer; see
            `heads.outputs`.
        """
        hidden_BPD, middle_BPD, state = self._run(x_BTC, day_B, state, n_patches_B)
        if n_patches_B is None:
            return self.out(hidden_BPD), state
        return outputs(self.out, hidden_BPD, middle_BPD, state)

    def hidden(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: State | None = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, State | None]:
        """Compute the hidden units that `out` reads, float [B, P, D]; see `forward`."""
        hidden_BPD, _, state = self._run(x_BTC, day_B, state, n_patches_B)
        return hidden_BPD, state

    def _run(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: State | None,
        n_patches_B: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, State | None]:
        """Compute the hidden units of the last and the intermediate layer, and the state."""
        if n_patches_B is not None and self.training and x_BTC.device.type == "cuda":
            found = kernels().transformer(self, x_BTC, day_B, n_patches_B)
            if found is not None:
                return *found, None
        x_BPD = self.embed(x_BTC, day_B)
        one_length = n_patches_B is None or len(x_BPD) == 1
        if self.config.attention != "causal" or self.training or not one_length:
            return *self.blocks(x_BPD, n_patches_B), None
        if n_patches_B is not None:
            return self.blocks.run_on(x_BPD, state)
        hidden_BPD, state = self.blocks.advance(x_BPD, state or self.first_state(len(x_BPD)))
        return hidden_BPD, None, state

    def embed(self, x_BTC: torch.Tensor, day_B: torch.Tensor) -> torch.Tensor:
        """Embed the patches of smoothed features [B, T, C], float [B, P, D]."""
        x_BPI = self.inputs(x_BTC, day_B)
        # LayerNorms read float32, and what the blocks add up is float32, in mixed precision, too:
        # from bfloat16, a CPU sums the gradients of a LayerNorm's weights with errors of 5 to 50 %.
        return self.embed_patches(self.patch_norm(x_BPI.to(self.patch_norm.weight.dtype)))

    def embed_patches(self, normed_BPI: torch.Tensor) -> torch.Tensor:
        """Embed normalised patches [..., I], float [..., D]."""
        embedded_BPD = self.embedding(normed_BPI)
        x_BPD = self.embedding_norm(embedded_BPD.to(self.embedding_norm.weight.dtype))
        return dropout(x_BPD, self.config.input_network.input_layer_dropout, self.training)

    def inputs(self, x_BTC: torch.Tensor, day_B: torch.Tensor | None) -> torch.Tensor:
        """Make patches [B, P, I] of smoothed features [B, T, C]; the last is filled with zeros."""
        if n_missing := -x_BTC.shape[1] % self.config.patch_size:  # `pad` copies in any case
            x_BTC = F.pad(x_BTC, (0, 0, 0, n_missing))
        x_BTC = self.day_layer(x_BTC, day_B)
        return x_BTC.reshape(len(x_BTC), -1, self.patch_width)


class TransformerBlocks(nn.Module):
    """The blocks of a Transformer and the LayerNorm after them."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.n_units)

    def first_state(self, n_trials: int) -> State:
        """Return the state with which trials begin."""
        config, weight = self.config, self.norm.weight
        width = config.n_heads * config.head_units
        none_LBWI = weight.new_zeros(config.n_layers, n_trials, config.context_frames, width)
        n_kept_1B = torch.zeros(1, n_trials, dtype=torch.int64, device=weight.device)
        return none_LBWI, none_LBWI.clone(), n_kept_1B

    def forward(
        self, x_BPD: torch.Tensor, n_patches_B: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run whole trials, float [B, P, D]; return the intermediate layer, too.

        Both are normalised, so that one read-out suits both; see `Transformer.forward`.
        """
        config = self.config
        p_P = torch.arange(x_BPD.shape[1], device=x_BPD.device)
        distance_PK = p_P[:, None] - p_P
        if config.attention == "bidirectional":
            seen = torch.ones_like(distance_PK, dtype=torch.bool)[None]
        else:
            begin_P = p_P - p_P % config.chunk_frames
            seen = (p_P < begin_P[:, None] + config.chunk_frames) & (
                p_P >= begin_P[:, None] - self._context(x_BPD.device)
            )
            seen = seen[None]
        # The padding comes last, where no frame of a trial looks that sees only the past.
        if n_patches_B is not None and config.attention != "causal":
            own_BP = p_P < to_device(n_patches_B, p_P.device)[:, None]
            seen = seen & own_BP[:, None] | (distance_PK == 0)  # a frame of the padding sees itself
        seen_BHPK = seen[:, None]
        lengths = None
        if n_patches_B is not None and x_BPD.device.type == "cpu":
            # Only attention sees the padding; the other layers read the trials' own frames, [N, D].
            lengths = n_patches_B.clamp(max=len(p_P)).tolist()
            x_BPD = without_padding(x_BPD, lengths)
        outputs = []
        for layer, block in enumerate(self.layers, start=1):
            x_BPD, _ = block(x_BPD, distance_PK, seen_BHPK, lengths=lengths)
            if layer in (config.intermediate_layer, config.n_layers):
                normed = self.norm(x_BPD)
                if lengths is not None:
                    normed = with_padding(normed, lengths, len(p_P))
                outputs.append(normed)
        return outputs[-1], outputs[0] if len(outputs) > 1 else None

    def _context(self, device: torch.device) -> int | torch.Tensor:
        """Return the frames before a chunk that are seen; in training, draw them."""
        return self.draw_context(device) if self.training else self.config.context_frames

    def draw_context(self, device: torch.device) -> torch.Tensor:
        """Draw the frames before a chunk that are seen in a batch, int64 []."""
        # torch's generator, which is seeded with the seed of the run and the number of the batch.
        # A tensor, not a number: reading it from a GPU would wait for all work in flight.
        least, most = self.config.train_context_frames
        return torch.randint(least, most + 1, (), device=device)

    def advance(self, x_BPD: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Run the next frames of trials, float [B, P, D]; return the next state, too."""
        hidden_BPD, _, state = self.run_on(x_BPD, state)
        return hidden_BPD, state

    def run_on(
        self, x_BPD: torch.Tensor, state: State | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, State]:
        """Run the next frames as `advance` does; return the intermediate layer, too.

        Without a state they are a trial's first frames.
        """
        n_frames, n_kept = x_BPD.shape[1], self.config.context_frames
        # Not `first_state`: a trial would be compared with the rows of zeros before it, which take
        # seconds and gigabytes for a context of hours.
        n_past = 0 if state is None else state[0].shape[2]
        p_P = torch.arange(n_frames, device=x_BPD.device)
        k_K = torch.arange(-n_past, n_frames, device=x_BPD.device)
        distance_PK = p_P[:, None] - k_K
        in_window_PK = (distance_PK >= 0) & (distance_PK <= n_kept)
        if state is None:
            n_kept_1B = torch.zeros(1, len(x_BPD), dtype=torch.int64, device=x_BPD.device)
        else:
            n_kept_1B = state[2]
        seen_BHPK = (in_window_PK & (k_K >= -n_kept_1B[0, :, None, None]))[:, None]
        kept = []
        middle_BPD = None
        for layer, block in enumerate(self.layers):
            past = None if state is None else (state[0][layer], state[1][layer])
            x_BPD, now = block(x_BPD, distance_PK, seen_BHPK, past)
            kept.append(now)
            if layer + 1 == self.config.intermediate_layer:
                middle_BPD = self.norm(x_BPD)
        keys, values = (torch.stack(tensors)[:, :, -n_kept:] for tensors in zip(*kept, strict=True))
        if (n_missing := n_kept - keys.shape[2]) > 0:
            keys, values = (F.pad(tensor, (0, 0, n_missing, 0)) for tensor in (keys, values))
        state = keys, values, (n_kept_1B + n_frames).clamp(max=n_kept)
        return self.norm(x_BPD), middle_BPD, state


Past = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of frames, float [B, K, H * E] each."""


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward network; each reads its normalised input and is added to it.

    Normalising before, not after, keeps deep stacks stable (Xiong et al., ICML 2020).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.n_heads * config.head_units
        self.config = config
        self.attention_norm = nn.LayerNorm(config.n_units)
        # Queries, keys and values in one product. No bias: the LayerNorm before has one.
        self.qkv = nn.Linear(config.n_units, 3 * width, bias=False)
        # One number per distance, from -199 (later frames) to 199, shared by the heads. Larger
        # distances take the number at their end.
        self.distance_bias = nn.Parameter(torch.zeros(2 * MOST_DISTANCE + 1))
        self.attended = nn.Linear(width, config.n_units)
        self.feed_forward_norm = nn.LayerNorm(config.n_units)
        self.widen = nn.Linear(config.n_units, WIDENING * config.n_units)
        self.narrow = nn.Linear(WIDENING * config.n_units, config.n_units)

    def forward(
        self,
        x_BPD: torch.Tensor,
        distance_PK: torch.Tensor,
        seen_BHPK: torch.Tensor,
        past: Past | None = None,
        lengths: list[int] | None = None,
    ) -> tuple[torch.Tensor, Past]:
        """Run frames.

        Args:
            x_BPD: Float [B, P, D].
            distance_PK: int64, frames from key k to frame p.
            seen_BHPK: Bool [B or 1, 1, P, K], the keys that a frame sees.
            past: Keys and values of frames before these; None for none.
            lengths: Frames of each trial, if `x_BPD` has these rows alone, [N, D]; None if not.

        Returns:
            Float of the shape of `x_BPD`, and the keys and values of all frames.
        """
        config = self.config
        qkv_BPI = self.qkv(self.attention_norm(x_BPD))
        if lengths is not None:
            qkv_BPI = with_padding(qkv_BPI, lengths, len(distance_PK))
        q_BPI, k_BKI, v_BKI = qkv_BPI.chunk(3, -1)
        if past is not None:
            k_BKI = torch.cat((past[0], k_BKI), 1)
            v_BKI = torch.cat((past[1], v_BKI), 1)
        bias_PK = by_distance(self.distance_bias, distance_PK)
        bias_BHPK = torch.where(seen_BHPK, bias_PK, -torch.inf)
        q_BHPE, k_BHKE, v_BHKE = (
            x.unflatten(-1, (config.n_heads, config.head_units)).transpose(1, 2)
            for x in (q_BPI, k_BKI, v_BKI)
        )
        found_BHPE = attention(
            q_BHPE, k_BHKE, v_BHKE, bias_BHPK, config.dropout if self.training else 0.0
        )
        found_BPI = found_BHPE.transpose(1, 2).flatten(2)
        if lengths is not None:
            found_BPI = without_padding(found_BPI, lengths)
        attended_BPD = self.attended(found_BPI)
        x_BPD = x_BPD + dropout(attended_BPD, config.dropout, self.training)
        wide = F.gelu(self.widen(self.feed_forward_norm(x_BPD)))
        narrow_BPD = self.narrow(dropout(wide, config.dropout, self.training))
        return x_BPD + dropout(narrow_BPD, config.dropout, self.training), (k_BKI, v_BKI)
