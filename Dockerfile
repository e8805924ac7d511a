# Images of sluice, from Debian's packages and their sources alone; scripts/image calls this, docs/container.md explains.
#
#   static   one executable, certificates, and what they are made of, in an empty root
#   gpu      the same with a libc, since a driver's libcuda.so.1 can only be opened by a program with a shared libc
#
# BASE is any Debian 12, to build in; give it by digest (debian@sha256:…) and images of the same packages are the same
# bytes. The secrets 'ca' (PEM) and 'pip' (a pip.conf) are for networks behind a proxy that looks into TLS.
ARG BASE=debian:bookworm-slim
ARG KERNELS=network

FROM ${BASE} AS build
WORKDIR /src
ENV SLUICE_BUILD_CA=/run/secrets/ca PIP_CONFIG_FILE=/run/secrets/pip
COPY scripts/lib.sh scripts/deps scripts/static-libs scripts/
RUN --mount=type=secret,id=ca ./scripts/deps static \
    && ./scripts/static-libs \
    && rm -rf /var/lib/apt/lists/*
COPY . .
ARG SOURCE_DATE_EPOCH=0
RUN ./scripts/build --static full --target sluice \
    && ./scripts/image-root --kind full --program build-static-full/sluice /image

FROM scratch AS static
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="model weights from object storage into memory" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image/ /
ENV PATH=/ SLUICE_LOG_FORMAT=json
USER 65532:65532
ENTRYPOINT ["/sluice"]
CMD ["--help"]

# Kernels for GPUs are as scripts/image compiled them on the machine that it ran on (KERNELS=host), or are compiled by
# what comes from the network.
FROM ${BASE} AS kernels-network
WORKDIR /src
ENV SLUICE_BUILD_CA=/run/secrets/ca PIP_CONFIG_FILE=/run/secrets/pip
COPY scripts/lib.sh scripts/deps scripts/cuda-compiler scripts/
RUN --mount=type=secret,id=ca --mount=type=secret,id=pip ./scripts/cuda-compiler && rm -rf /var/lib/apt/lists/*

FROM ${BASE} AS kernels-host
RUN mkdir -p /src/.cache/cuda

FROM kernels-${KERNELS} AS kernels

FROM build AS build-most
ARG CUDA=ON
COPY --from=kernels /src/.cache/cuda .cache/cuda
RUN if [ "$CUDA" = OFF ]; then compiler=; \
    elif [ -d build-kernels ]; then compiler=/src/build-kernels; \
    else compiler=$(./scripts/cuda-compiler --path); fi \
    && ./scripts/build --static most "-DSLUICE_CUDA=$CUDA" "-DSLUICE_CUDA_COMPILER=$compiler" --target sluice \
    && ./scripts/image-root --kind most --program build-static-most/sluice /image-most

FROM scratch AS gpu
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="model weights from object storage into memory, with GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build-most /image-most/ /
# Which GPUs are visible is for the device plugin to say; this is only what of the driver is wanted.
# The folders are where container runtimes put a driver who change no loader cache.
ENV PATH=/ NVIDIA_DRIVER_CAPABILITIES=compute,utility SLUICE_LOG_FORMAT=json \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/local/nvidia/lib
USER 65532:65532
ENTRYPOINT ["/sluice"]
CMD ["--help"]
