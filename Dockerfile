# syntax=docker/dockerfile:1
# Tidelock with all its extras. The ledger is where TIDELOCK_DATABASE_URL says; without it, in a Postgres in /data.

FROM python:3.11.14-slim-bookworm AS build
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/opt/tidelock
WORKDIR /src
RUN pip install --no-cache-dir uv==0.13.8
COPY pyproject.toml uv.lock README.md LICENSE ./
# First what changes rarely: the versions of the lock file, without Tidelock.
RUN uv sync --frozen --no-dev --no-install-project --extra server --extra kafka --extra clickhouse --extra console
COPY tidelock tidelock
RUN uv sync --frozen --no-dev --no-editable --extra server --extra kafka --extra clickhouse --extra console

FROM python:3.11.14-slim-bookworm
# Spark runs on Java; procps is what its scripts ask for.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --shell /usr/sbin/nologin tidelock \
    && install --directory --owner tidelock --group tidelock /data /anchor /etc/tidelock
COPY --from=build /opt/tidelock /opt/tidelock
ENV PATH=/opt/tidelock/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SPARK_HOME=/opt/tidelock/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/tidelock/bin/python \
    TIDELOCK_DATA=/data \
    TIDELOCK_SPARK_JARS=/opt/tidelock/jars \
    TIDELOCK_ANCHOR=/anchor/anchor.jsonl \
    TIDELOCK_HOST=0.0.0.0
# What Spark would download at its first start, so that the image starts without a network.
RUN tidelock dev jars --data /opt/tidelock
USER tidelock
# A tidelock.toml that is mounted here is found without being named.
WORKDIR /etc/tidelock
VOLUME ["/data", "/anchor"]
EXPOSE 8080
# Alive, not ready: a ledger that is away is no reason to restart the server.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('TIDELOCK_PORT', '8080') + '/healthz', timeout=4)"]
ENTRYPOINT ["tidelock"]
CMD ["serve"]
