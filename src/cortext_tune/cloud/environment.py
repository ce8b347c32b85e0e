"""The environment of a rented machine: the versions with which the tests were run.

An installed cortext lacks `constraints.txt` and `constraints-tpu.txt`. A test checks that these
lists equal them.
"""

from __future__ import annotations

import shlex
import textwrap

from cortext_tune.cloud.accelerators import Accelerator
from cortext_tune.cloud.source import InstallSource

PYTHON = "3.11"
UV = "0.13.9"
"""Version of uv, which installs Python and torch.

The build of torch has no CUDA beside a TPU; else it fits the machine's driver.
"""
TORCH = "torch==2.13.0"
TPU = (
    "jax[tpu]==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1 opt_einsum==3.4.0 torchax==0.0.14.dev20261026"
).split()
BASE = (
    "annotated-doc==0.0.7 annotated-types==0.8.0 certifi==2026.10.18 charset-normalizer==3.5.2"
    " contourpy==1.3.3 cycler==0.12.1 duckdb==2.0.0 filelock==4.2.11 fonttools==4.68.0"
    " fsspec==2026.9.0 h5py==3.16.0 idna==3.20 Jinja2==3.1.6 kiwisolver==1.5.1"
    " markdown-it-py==4.3.0 MarkupSafe==3.0.4 matplotlib==3.11.2 mdurl==0.1.2 ml_dtypes==0.6.0"
    " mpmath==1.3.0 networkx==3.6.1 numpy==2.4.6 packaging==26.3 pillow==13.0.0 protobuf==7.36.2"
    " pydantic==2.14.3 pydantic_core==2.50.4 Pygments==2.21.0 pyparsing==3.3.3"
    " python-dateutil==4.0.0 PyYAML==6.0.3 RapidFuzz==3.14.6 requests==2.34.2 rich==15.0.0"
    " safetensors==0.8.0 scipy==1.17.1 sentencex==1.0.32 setuptools==84.2.1 shellingham==1.5.4"
    " sympy==1.14.0 tensorboardX==2.6.5 typer==0.29.2 typing_extensions==4.16.0"
    " typing-inspection==0.4.5 tzdata==2026.6 urllib3==2.8.0"
).split()

_SETUP = """\
set -euo pipefail
mkdir -p ~/cortext
if [ ! -x ~/cortext/bin/uv ]; then
  curl -LsSf https://astral.sh/uv/{uv}/install.sh | env UV_UNMANAGED_INSTALL="$HOME/cortext/bin" sh
fi
{compiler}~/cortext/bin/uv venv --quiet --allow-existing --python {python} ~/cortext/env
tr ' ' '\\n' > ~/cortext/constraints.txt <<'END'
{constraints}
END
~/cortext/bin/uv pip install --python ~/cortext/env/bin/python --torch-backend {backend} \\
  --constraints ~/cortext/constraints.txt \\
  {packages}
~/cortext/env/bin/cortext --version
"""
_COMPILER = """\
if ! { command -v g++ && command -v git; } >/dev/null; then
  sudo apt-get update -qq && sudo apt-get install -y -qq g++ git
fi
"""
_SEES_GPUS = """\
~/cortext/env/bin/python -c 'import torch; n = torch.cuda.device_count(); assert n >= {count}, f"torch sees {{n}} GPUs"'
"""  # noqa: E501


def setup_script(chosen: Accelerator, source: InstallSource) -> str:
    """Return the shell script that makes the environment in `~/cortext/env`.

    Running it again changes nothing.
    """
    script = _SETUP.format(
        uv=UV,
        python=PYTHON,
        compiler=_COMPILER if source.build else "",
        constraints=textwrap.fill(" ".join(BASE), 110, break_on_hyphens=False),
        backend="cpu" if chosen.is_tpu else "auto",
        packages=" ".join(
            [*map(shlex.quote, [TORCH, *(TPU if chosen.is_tpu else [])]), source.word]
        ),
    )
    return script if chosen.is_tpu else script + _SEES_GPUS.format(count=chosen.count)
