#!/bin/sh
# Recompile the pinned requirements from pyproject.toml:  make requirements
# One set of pins for Python 3.11 to 3.13: where they must differ, a line says for which version it is.
# No index URL is written, so that any mirror serves; hashes are, so that none can serve something else.
set -eu
uv=${1:?usage: compile.sh UV}
compile() { out=$1; shift; "$uv" pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --generate-hashes \
  --no-header --no-annotate "$@" --output-file "requirements/$out.txt"; }
compile agent pyproject.toml --extra agent
compile spark pyproject.toml --extra spark
compile airflow pyproject.toml --extra airflow
compile dev pyproject.toml --extra agent --extra kafka-tier --extra lineage --extra onboarding --extra spark --group dev
compile demo pyproject.toml --extra agent --extra consumer --extra table --group demo --constraint requirements/dev.txt
compile pytest --group pytest --constraint requirements/airflow.txt
compile axe --group axe --no-deps
compile docs --group docs
compile mermaid --group mermaid --no-deps
compile java --group java
compile release --group release --constraint requirements/dev.txt
compile spark-4.1 --group spark-4.1
compile readers --group readers
compile object-store pyproject.toml --extra object-store --constraint requirements/agent.txt
compile kafka-tier pyproject.toml --extra kafka-tier --constraint requirements/agent.txt
compile airflow-lineage pyproject.toml --extra airflow-lineage --constraint requirements/airflow.txt
compile lineage pyproject.toml --extra lineage --constraint requirements/spark.txt
compile build requirements/build.in
