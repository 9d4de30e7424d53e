# Spark's master and workers: Java, and the Spark environment with the package that the Python workers import.
# Another architecture or mirror: docs/kubernetes.md says how to find its digest.
ARG BASE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1
FROM ${BASE} AS build
WORKDIR /src
COPY requirements/build.txt requirements/spark.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && uv venv --python /usr/local/bin/python /opt/tidemark/spark \
 && uv pip sync --no-cache --compile-bytecode --require-hashes --python /opt/tidemark/spark/bin/python requirements/spark.txt
COPY pyproject.toml hatch_build.py README.md ./
COPY include include
COPY uploader_agent uploader_agent
COPY spark spark
COPY plugins plugins
COPY dags dags
COPY deploy deploy
# As a file and without its dependencies: Tidemark is on no index, so no resolver may look for it.
RUN hatchling build --target wheel --directory dist \
 && uv pip install --no-cache --no-deps --no-index --compile-bytecode --python /opt/tidemark/spark/bin/python dist/*.whl \
 && /opt/tidemark/spark/bin/python -m tidemark.decode.compile --installation

FROM ${BASE}
# procps: Spark's scripts call ps. Debian keeps no older versions, so a pinned one would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --home-dir /var/lib/spark --no-create-home spark \
 && install --directory --owner spark /var/lib/spark
COPY --from=build /opt/tidemark /opt/tidemark
COPY docker/spark-entrypoint.sh /opt/tidemark/bin/
COPY spark/jobs/connect.py /opt/tidemark/jobs/
ENV PATH=/opt/tidemark/spark/bin:$PATH \
    PYSPARK_PYTHON=/opt/tidemark/spark/bin/python \
    SPARK_HOME=/opt/tidemark/spark/lib/python3.11/site-packages/pyspark
USER 1000:1000
WORKDIR /var/lib/spark
ENTRYPOINT ["/opt/tidemark/bin/spark-entrypoint.sh"]
