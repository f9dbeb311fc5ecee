# The server of docs/serving.md#in-a-container: the package, its models and the extras that it needs; nothing is downloaded at a start.
# For recurrent models: --build-arg EXTRAS=serve,search,recurrent, and the index of torch's builds for CPUs in PIP_EXTRA_INDEX_URL.
FROM python:3.11-slim AS build
ARG EXTRAS=serve,search
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN python -m venv /opt/runnel \
    && /opt/runnel/bin/pip install --no-cache-dir -c constraints.txt ".[$EXTRAS]"

FROM python:3.11-slim
COPY --from=build /opt/runnel /opt/runnel
# All that is written at run time, so that the rest can be read-only: compiled kernels, and models that a user loads by name.
ENV PATH=/opt/runnel/bin:$PATH NUMBA_CACHE_DIR=/cache/numba HF_HOME=/cache/huggingface
RUN useradd --uid 10001 --no-create-home runnel && install --directory --owner runnel /cache
VOLUME /cache
USER runnel
WORKDIR /cache
EXPOSE 8675
HEALTHCHECK --start-period=30s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8675/health', timeout=3)"]
ENTRYPOINT ["runnel", "serve", "--host", "0.0.0.0"]
