# Airflow's components. Spark has an environment of its own beside Airflow's, because their pins conflict; of it
# only spark-submit is on the path.
# Another architecture or mirror: docs/kubernetes.md says how to find its digest.
ARG BASE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1
FROM ${BASE} AS build
WORKDIR /src
COPY requirements/build.txt requirements/airflow.txt requirements/spark.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && for env in airflow spark; do \
      uv venv --python /usr/local/bin/python /opt/tidemark/$env \
      && uv pip sync --no-cache --compile-bytecode --require-hashes --python /opt/tidemark/$env/bin/python requirements/$env.txt \
      || exit 1; \
    done
COPY pyproject.toml hatch_build.py README.md ./
COPY include include
COPY uploader_agent uploader_agent
COPY spark spark
COPY plugins plugins
COPY dags dags
COPY deploy deploy
# As a file and without its dependencies: Tidemark is on no index, so no resolver may look for it.
RUN hatchling build --target wheel --directory dist \
 && for env in airflow spark; do \
      uv pip install --no-cache --no-deps --no-index --compile-bytecode --python /opt/tidemark/$env/bin/python dist/*.whl \
      || exit 1; \
    done \
 && for env in airflow spark; do /opt/tidemark/$env/bin/python -m tidemark.decode.compile --installation || exit 1; done

FROM ${BASE}
# procps: Spark's scripts call ps. Debian keeps no older versions, so a pinned one would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 50000 --home-dir /var/lib/airflow --no-create-home airflow \
 && install --directory --owner airflow /var/lib/airflow \
 && mkdir --parents /opt/tidemark/bin \
 && ln --symbolic ../spark/bin/spark-submit /opt/tidemark/bin/spark-submit
COPY --from=build /opt/tidemark /opt/tidemark
COPY dags /opt/tidemark/dags
COPY spark/jobs /opt/tidemark/jobs
COPY deploy/airflow-clean.sh /opt/tidemark/bin/airflow-clean.sh
COPY docker/airflow-init.sh /opt/tidemark/docker/airflow-init.sh
ENV PATH=/opt/tidemark/bin:/opt/tidemark/airflow/bin:$PATH \
    PYSPARK_PYTHON=/opt/tidemark/spark/bin/python \
    AIRFLOW__TIDEMARK__SPARK_PYTHON=/opt/tidemark/spark/bin/python \
    SPARK_HOME=/opt/tidemark/spark/lib/python3.11/site-packages/pyspark
USER 50000:50000
WORKDIR /var/lib/airflow
