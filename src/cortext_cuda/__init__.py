"""Train fast on Nvidia's GPUs: kernels, and whole training steps as CUDA graphs.

What it is: kernels of CTC and of the GRU in CUDA, compiled when they are first used; kernels of the
Transformer, the day layers and smoothing in Triton; and training steps that one call replays. The
results are those of torch's own kernels, up to rounding. Each path proves that on the very card
before it is taken; where it cannot be taken, torch's own kernels run.

Stands on `cortext`. The core asks for `kernels` by an entry point; `cortext.cuda` says for which
functions and when.

Begin with `paths`, which lists the parts and why each is taken or not. Then read `proofs`,
`gru_kernel`, `ctc`, `fused_blocks` and `step_graphs`.
"""

import cortext  # noqa: F401  # it prepares the threads of libraries loaded later
