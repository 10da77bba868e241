# syntax=docker/dockerfile:1
# The sidecar, and (as an init container: `specgov export-hooks DIR`) the carrier of the hook.
# Nothing of SGLang, CUDA or a compiler is in the final image.

ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
# [otel] for docs/opentelemetry.md; nothing by default.
ARG EXTRAS=""
WORKDIR /src
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/specgov
COPY pyproject.toml LICENSE README.md ./
COPY sglang_hooks sglang_hooks
COPY policies policies
COPY controller controller
# Compiled here once: the root file system is read-only at run time.
RUN /opt/specgov/bin/pip install ".${EXTRAS}" \
 && /opt/specgov/bin/pip uninstall --yes pip \
 && /opt/specgov/bin/python -m compileall -q /opt/specgov/lib

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="specgov" \
      org.opencontainers.image.description="Decides, live, how deep an SGLang server should speculate" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/specgov /opt/specgov
# A user without a name or a home: the only writable place is the data volume.
RUN install -d -o 65532 -g 65532 /var/lib/specgov
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
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9470/healthz', timeout=2)"]
ENTRYPOINT ["specgov"]
CMD ["run"]
