"""Large language models beside the n-gram: at the end of a sentence, and within the search."""
