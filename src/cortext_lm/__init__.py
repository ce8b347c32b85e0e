"""Language models, built and trained: n-grams from texts, large models; and ensembles of decoders.

The core reads n-grams; everything that needs a large language model needs this package. Stands on
`cortext`.

Begin with:

- `ngram.build`: an n-gram model of texts, behind `LanguageModel.build`.
- `llm.large_model`: a large model that ranks the sentences of a finished search.
- `llm.fusion`: a large model that takes part in the search.
- `llm.finetune`: a large model learns from one's own sentences.
- `kaldi.folder`: a published Kaldi folder becomes a language-model directory.
- `neural.train_neural`: a small model, trained from text on a processor.
- `ensemble.combine`: one sentence from those of several systems.
- `ensemble.results`: the same for whole evaluations.
"""

import cortext  # noqa: F401  # it prepares the threads of libraries loaded later
