"""Benchmarks behind `cortext bench`: each runs side by side with the best alternative."""

import cortext  # noqa: F401  # it prepares the threads of what is loaded after it
