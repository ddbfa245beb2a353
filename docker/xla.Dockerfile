# PyTorch/XLA and the toolkit: docs/images.md. Built from the repository's root.
ARG BASE_IMAGE=debian:12.11-slim
# Wheels of your own: --build-context wheels=DIR. Without it this stage is empty and everything comes from the index.
FROM scratch AS wheels

FROM ${BASE_IMAGE} AS python
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/venv \
 && mkdir -m 1777 /opt/ml \
 && useradd --create-home --uid 10001 trainer
# /opt/toolkit/bin holds `train` alone, in front of one that sagemaker-training may bring to the environment later.
ENV PATH=/opt/toolkit/bin:/opt/venv/bin:$PATH LANG=C.UTF-8

FROM python AS toolkit
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /toolkit /src

# torch_xla loads only with torch's CUDA build, but needs none of NVIDIA's 4 GB: empty libraries stand in their place.
FROM python AS frameworks
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends binutils gcc libc6-dev
ARG TORCH_XLA="torch==2.9.1 torch_xla==2.9.0"
COPY scripts/stub-cuda /src/scripts/stub-cuda
RUN --mount=type=bind,from=wheels,target=/wheels \
    pip install --no-cache-dir --find-links /wheels --no-deps ${TORCH_XLA} \
 && pip install --no-cache-dir --find-links /wheels filelock typing-extensions sympy networkx jinja2 fsspec numpy \
      absl-py pyyaml requests \
 && python /src/scripts/stub-cuda /opt/venv/lib/python3*/site-packages/torch/lib

FROM python
# torch_xla is linked against Python's own library, which Debian and Ubuntu have in a package of its version.
RUN apt-get update \
 && apt-get install -y --no-install-recommends "libpython$(python3 -c 'import sys; print(*sys.version_info[:2], sep=".")')" \
 && rm -rf /var/lib/apt/lists/*
COPY --from=frameworks /opt/venv /opt/venv
# The toolkit's extras: GPUs in the monitor, s3:// and the like. EXTRAS= for none.
ARG EXTRAS=monitor,storage
RUN --mount=type=bind,from=toolkit,source=/toolkit,target=/toolkit --mount=type=bind,from=wheels,target=/wheels \
    pip install --no-cache-dir --find-links /wheels "$(echo /toolkit/*.whl)${EXTRAS:+[$EXTRAS]}" \
 && mkdir -p /opt/toolkit/bin && cp /opt/venv/bin/train /opt/toolkit/bin/
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="toolkit-xla" \
      org.opencontainers.image.description="PyTorch/XLA with the training toolkit: docker run IMAGE train" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=2 CMD ["toolkit", "health"]
# Some bases (nginx, systemd) have another. Who stops the job gives it time: docker run --stop-timeout 120.
STOPSIGNAL SIGTERM
# RUN_AS=trainer: the image's user without any rights of root, in /opt/ml, which all may write to.
ARG RUN_AS=root
USER ${RUN_AS}
# No entry point in between: the kernel starts what is asked for, `train` by default, as PID 1.
ENTRYPOINT []
CMD ["train"]
