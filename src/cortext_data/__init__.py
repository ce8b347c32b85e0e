"""."""

import cortext  # noqa: F401  # it prepares the threads of what is loaded after it
