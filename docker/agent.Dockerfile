# The sidecar of a broker: the agent's pinned requirements and the package, nothing else.
# Another architecture or mirror: docs/kubernetes.md says how to find its digest.
ARG BASE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1
FROM ${BASE} AS build
WORKDIR /src
COPY requirements/build.txt requirements/agent.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && uv venv --python /usr/local/bin/python /opt/tidemark/agent \
 && uv pip sync --no-cache --compile-bytecode --require-hashes --python /opt/tidemark/agent/bin/python requirements/agent.txt
COPY pyproject.toml hatch_build.py README.md ./
COPY include include
COPY uploader_agent uploader_agent
COPY spark spark
COPY plugins plugins
COPY dags dags
COPY deploy deploy
# As a file and without its dependencies: Tidemark is on no index, so no resolver may look for it.
RUN hatchling build --target wheel --directory dist \
 && uv pip install --no-cache --no-deps --no-index --compile-bytecode --python /opt/tidemark/agent/bin/python dist/*.whl

FROM ${BASE}
RUN install --directory --owner 1000 --group 1000 /var/lib/tidemark
COPY --from=build /opt/tidemark /opt/tidemark
ENV PATH=/opt/tidemark/agent/bin:$PATH PYTHONUNBUFFERED=1
USER 1000:1000
CMD ["tidemark-agent", "run", "--config", "/etc/tidemark/agent.yaml"]
