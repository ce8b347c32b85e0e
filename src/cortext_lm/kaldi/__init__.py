"""Published Kaldi folders: their grammar, graph and lexicon become a language-model directory."""
