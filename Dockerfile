# The sidecar, and (as an init container: `specgov export-hooks DIR`) the carrier of the hook.
# Nothing of SGLang, CUDA or a compiler is in the final image.

# Where there is no way to the public registry: --build-arg BASE=your.mirror/python:3.12-slim-bookworm.
# Any image will do that has Python 3.11 or newer as `python`, with its module venv, and libstdc++.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
# [otel] for docs/opentelemetry.md; nothing by default.
ARG EXTRAS=""
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/specgov
COPY pyproject.toml LICENSE README.md ./
COPY sglang_hooks sglang_hooks
COPY policies policies
COPY controller controller
# An index or a certificate authority of your own: --secret id=pip.conf,src=... and --secret id=ca.pem,src=...
# (`cert = /run/secrets/ca.pem` in the former); neither stays in a layer or in the history.
# Compiled here once, since the root file system is read-only at run time; unchecked-hash, since builders
# that set all times to one would make every file look changed, to be compiled anew at every start.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    /opt/specgov/bin/pip install --no-compile ".${EXTRAS}" \
 && /opt/specgov/bin/pip uninstall --quiet --yes pip setuptools \
 && /opt/specgov/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/specgov/lib

FROM ${BASE}
LABEL org.opencontainers.image.title="specgov" \
      org.opencontainers.image.description="Decides, live, how deep an SGLang server should speculate" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/specgov /opt/specgov
# A user without a name or a home: the only writable place is the data volume.
# A base that lacks a library is found out here, not in a pod.
RUN install -d -o 65532 -g 65532 /var/lib/specgov \
 && PYTHONDONTWRITEBYTECODE=1 /opt/specgov/bin/specgov --version
USER 65532:65532
WORKDIR /var/lib/specgov
ENV PATH=/opt/specgov/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/var/lib/specgov
VOLUME /var/lib/specgov
EXPOSE 9470
# The process's own loop only: that SGLang is away is no reason to restart the sidecar.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
  CMD ["python", "-m", "controller.health_check"]
ENTRYPOINT ["specgov"]
CMD ["run"]
