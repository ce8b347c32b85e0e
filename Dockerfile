# For a CPU, which is the default, or for NVIDIA GPUs (another build of torch; the driver stays outside):
#
#     docker build --tag cortext .
#     docker build --tag cortext:cuda --build-arg TORCH=cu130 .
#
# The command is `cortext`, and the demo what it does if nothing else is asked for:
#
#     docker run --rm --volume "$PWD:/work" cortext
#     docker run --rm --gpus all --volume "$PWD:/work" cortext:cuda train --config gru --data packed --out run --device cuda

FROM python:3.11-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /cortext
COPY constraints.txt pyproject.toml README.md LICENSE NOTICE ./
COPY licenses licenses
COPY native native
COPY src src
# What has been compiled is kept from one build to the next.
RUN --mount=type=cache,target=/cortext/build \
    PIP_CONSTRAINT=constraints.txt pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.11-slim-bookworm
ARG TORCH=cpu
ARG EXTRAS=live
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
# The libraries come before the wheel: the largest layers stay while only cortext changes.
WORKDIR /opt/cortext
COPY constraints.txt ./
RUN version=$(sed -n 's/^torch==//p' constraints.txt) \
    && pip install --no-cache-dir --constraint constraints.txt \
        --extra-index-url "https://download.pytorch.org/whl/$TORCH" "torch==$version+$TORCH"
COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        >requirements.txt \
    && pip install --no-cache-dir --constraint constraints.txt --requirement requirements.txt
COPY --from=build /wheel /opt/cortext/wheel
RUN pip install --no-cache-dir --constraint constraints.txt "$(echo wheel/*.whl)[$EXTRAS]"

RUN useradd --create-home --uid 1000 cortext && mkdir /work && chown cortext /work
USER 1000
WORKDIR /work
ENTRYPOINT ["cortext"]
CMD ["demo", "--out", "demo"]
