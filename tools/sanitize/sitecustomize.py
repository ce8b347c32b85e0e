"""Makes `import cortext._native` give the checked build.

With this directory and that of the build on PYTHONPATH.
"""

import sys

import _native

sys.modules["cortext._native"] = _native
