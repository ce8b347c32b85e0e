"""The benchmarks of `cortext bench`: each runs side by side with the best alternative.

Stands on `cortext`, `cortext_checks`, `cortext_cuda`, `cortext_data`, `cortext_lm`,
`cortext_live`, `cortext_speechllm`, `cortext_tpu`, `cortext_tune` and `cortext_published`: it may
measure all of them.

Begin with:

- `harness`: two programs in turns, their times, a table and JSON.
- `decoder.compare`: our word search and others.
- `training.compare`: our training loop and the published one.
- `latency`: the time of live decoding on one core.
- `llm.compare` and `speech_llm.compare`: the cost of large models and of speech LLMs.
- `tpu_compile`: training steps compiled for a TPU that is absent.
"""

import cortext  # noqa: F401  # it prepares the threads of libraries loaded later
