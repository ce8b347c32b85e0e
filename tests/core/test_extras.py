"""Names of packages that load on first use."""

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = ("cortext", "cortext.evaluation", "cortext_live", "cortext_tune", "cortext_speechllm")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_what_it_says(package):
    module = import_module(package)
    assert {name: getattr(module, name).__name__ for name in module.__all__} == {
        name: name for name in module.__all__
    }
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.__getattr__("nothing")


def test_none_of_them_waits_for_torch():
    code = f"import sys, {', '.join(PACKAGES)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
