# Images of sluice, from Debian's packages and their sources alone; scripts/image calls this, docs/container.md explains.
#
#   static   one executable, certificates, and what they are made of, in an empty root
#   gpu      the same on a libc, since a driver's libcuda.so.1 can only be opened by a program with a shared libc
#
# BASE is any Debian 12; give it by digest (debian@sha256:…) and images of the same packages are the same bytes.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
WORKDIR /src
COPY scripts/lib.sh scripts/deps scripts/static-libs scripts/
RUN ./scripts/deps static \
    && apt-get install -y --no-install-recommends ca-certificates \
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
ENV PATH=/ SLUICE_LISTEN=:9464 SLUICE_LOG_FORMAT=json
EXPOSE 9464
USER 65532:65532
ENTRYPOINT ["/sluice"]
CMD ["--help"]

FROM build AS build-most
# Kernels for GPUs: as scripts/image compiled them on the machine that it ran on, or else by a compiler from the network.
ARG CUDA=ON
RUN if [ "$CUDA" = OFF ]; then compiler=; \
    elif [ -d build-kernels ]; then compiler=/src/build-kernels; \
    else ./scripts/cuda-compiler && compiler=$(./scripts/cuda-compiler --path); fi \
    && ./scripts/build --static most "-DSLUICE_CUDA=$CUDA" "-DSLUICE_CUDA_COMPILER=$compiler" --target sluice \
    && ./scripts/image-root --kind most --program build-static-most/sluice /image-most

FROM ${BASE} AS gpu
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="model weights from object storage into memory, with GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build-most /image-most/ /
# Which GPUs are visible is for the device plugin to say; this is only what of the driver is wanted.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility SLUICE_LISTEN=:9464 SLUICE_LOG_FORMAT=json
EXPOSE 9464
USER 65532:65532
ENTRYPOINT ["/sluice"]
CMD ["--help"]
